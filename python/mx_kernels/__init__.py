"""MX quantization and block-scaled matrix multiplication for torch tensors and NumPy arrays.

    MXTensor                      quantized numbers, as a torch tensor
    quantize, dequantize          floats to an MXTensor and back
    tensor_scale_of               the float of a whole tensor that NVFP4 may be quantized with
    requantize                    an MXTensor in another format, and the error that this costs
    preshuffle, unshuffle         weights to the layout that a device reads fastest, and back
    matmul                        MXTensor @ MXTensor.T
    linear                        floats @ MXTensor.T in one call, quantized on the fly or kept
    grouped_linear, moe           the same with one of several matrices for each row: experts
    rms_norm_quantize, layer_norm_quantize, gate_quantize
                                  norms and gates whose results are quantized at once
    mlp                           a dense MLP: product, gate, product
    MXLinear, MXExperts           the same as torch modules
    convert, conversion_report    a whole model's layers at once, and what became of each
    explain                       which kernel a shape gets on a device, and why
    load, save                    checkpoints: MXTensors by name, of many forms and in our own
    mojo_path                     the folder of the kernels' sources, for Mojo programs

`integrations.transformers` loads and saves whole models of transformers, and gpt-oss in its 4 bits;
`integrations.distributed` has models over ranks, `integrations.vllm` is a plugin of vLLM. The
operations are also registered as `torch.ops.mx_kernels.*`. The kernels are written in Mojo and
compiled for this machine at the first use (see `_core.native`).
"""

import importlib.metadata

from mx_kernels._core import moved as _moved
from mx_kernels._core import tensor_products as _tensor_products  # noqa: F401  registers
from mx_kernels._core import torch_ops as _torch_ops  # noqa: F401  registers the operators
from mx_kernels._core.native import mojo_path
from mx_kernels.checkpoints import load, save
from mx_kernels.conversion import conversion_report, convert
from mx_kernels.experts import MXExperts, grouped_linear, moe
from mx_kernels.explain import explain
from mx_kernels.fused import gate_quantize, layer_norm_quantize, mlp, rms_norm_quantize
from mx_kernels.integrations import saving as _saving  # noqa: F401  registers
from mx_kernels.modules import MXLinear
from mx_kernels.ops import (
    dequantize,
    linear,
    matmul,
    preshuffle,
    quantize,
    requantize,
    tensor_scale_of,
    unshuffle,
)
from mx_kernels.tensor import MXTensor

__all__ = [
    "MXExperts",
    "MXLinear",
    "MXTensor",
    "conversion_report",
    "convert",
    "dequantize",
    "explain",
    "gate_quantize",
    "grouped_linear",
    "layer_norm_quantize",
    "linear",
    "load",
    "matmul",
    "mlp",
    "moe",
    "mojo_path",
    "preshuffle",
    "quantize",
    "requantize",
    "rms_norm_quantize",
    "save",
    "tensor_scale_of",
    "unshuffle",
]

_moved.find_moved()


def __getattr__(name: str) -> str:
    """Returns `__version__`, which the installed package knows."""
    if name == "__version__":
        return importlib.metadata.version(__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
