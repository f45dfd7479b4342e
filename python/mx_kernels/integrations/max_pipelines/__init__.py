"""Models of MAX with our linear layers and experts: for `max generate`, `serve` and `encode`.

    max generate --custom-architectures mx_kernels.max_pipelines --model FOLDER ...

        weights.py      which tensors of a checkpoint make which weight, read one at a time
        modules.py      linear layers, an MLP and experts as modules of `max.nn`
        attention.py    windows and sinks on a CPU, and YaRN as gpt-oss has it
        models.py       the graph of a decoder, its pipeline, and the architectures
        encoders.py     the same for BERT, which is MAX's own but for linear layers

A checkpoint of floats is quantized while it is loaded, as `mx_kernels.convert` quantizes a model;
one that is MX or FP8 already, in any form that `mx_kernels.load` reads, is multiplied in its own
bits. All else is MAX's own: embeddings, norms, attention, the KV cache, sampling, the server.

MX_KERNELS_ACTIVATIONS names what activations are multiplied as. Without it they are what the
checkpoint says, or what the device is best at. MX_KERNELS_FORMAT names what floats are quantized
to, MXFP4 without it. MX_KERNELS_REST names what output heads, tied ones too, and other linear
layers become that are floats otherwise.
"""

from __future__ import annotations

from typing import Any

try:
    from mx_kernels.integrations.max_pipelines.encoders import ENCODERS
    from mx_kernels.integrations.max_pipelines.models import DECODERS
except ImportError as error:
    raise ImportError(
        f"mx_kernels.max_pipelines: got {error}, expected MAX's serving with the releases that it "
        'asks for; run `pip install "mx_kernels[max-serve]"` in an environment of its own'
    ) from error

ARCHITECTURES: list[Any] = [*DECODERS, *ENCODERS]

__all__ = ["ARCHITECTURES"]
