"""Models of transformers 5 with MX weights: quantized while they load, saved, loaded in 4 bits.

    AutoModelForCausalLM.from_pretrained(floats, quantization_config=MXConfig(format="mxfp4"))
    model.save_pretrained(folder)         also of what `mx_kernels.convert` returned
    AutoModelForCausalLM.from_pretrained(folder)
    from_pretrained(folder, activations=...)    that, and what others have quantized, in its bits
    register()                            the same where other programs load gpt-oss

Importing this module tells transformers the quantization method "mx_kernels", and changes nothing
else. Left to itself, transformers dequantizes gpt-oss on a CPU, to four times the memory;
`from_pretrained` here loads it, and every form that `mx_kernels.load` reads, without touching how
others are loaded, `register` is for programs that call transformers themselves.

    config.py       MXConfig: what becomes of weights and activations
    names.py        what a model calls what a checkpoint holds
    sources.py      which parameters of a checkpoint make which weight
    quantizer.py    MXQuantizer: what transformers asks while it loads and saves
    loading.py      from_pretrained, register
    parallel.py     tp_plan="auto": each rank a part of every layer
"""

try:
    import transformers  # noqa: F401  an optional dependency
except ModuleNotFoundError as error:
    raise ImportError(
        "mx_kernels.integrations.transformers needs transformers: "
        "pip install 'mx_kernels[transformers]'"
    ) from error

from mx_kernels.integrations.transformers.config import MXConfig
from mx_kernels.integrations.transformers.loading import from_pretrained, register
from mx_kernels.integrations.transformers.quantizer import MXQuantizer, attach

__all__ = ["MXConfig", "MXQuantizer", "attach", "from_pretrained", "register"]
