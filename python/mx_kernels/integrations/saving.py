"""Models of transformers that `convert` returns can be saved by `model.save_pretrained`.

Transformers is asked only where it made the model, and so is imported already.
"""

from __future__ import annotations

import sys

from torch import nn

from mx_kernels.conversion import FINISHED


def tell_transformers(model: nn.Module) -> None:
    """Tells the models of transformers in `model` how they are saved."""
    library = sys.modules.get("transformers.modeling_utils")
    if library is not None and any(isinstance(m, library.PreTrainedModel) for m in model.modules()):
        from mx_kernels.integrations.transformers import attach  # noqa: PLC0415  not without transformers

        attach(model)


FINISHED.append(tell_transformers)
