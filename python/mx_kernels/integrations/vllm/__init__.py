"""A plugin of vLLM: MXFP4 on CPUs, where vLLM has no kernel for it, and checkpoints of our own.

    vllm serve QUARK-OR-COMPRESSED-TENSORS     linear.py: a kernel for MXFP4 in the CPU's table
    vllm serve GPT-OSS                         experts.py: on a CPU, its 4 bits stay 4 bits
    vllm serve WHAT-SAVE_PRETRAINED-WROTE      config.py: quant_method "mx_kernels", anywhere

vLLM finds `register` by the entry point `vllm.general_plugins` of this package and calls it in each
of its processes; without vLLM nothing of this is imported. The variable MX_KERNELS_ACTIVATIONS
names what activations are multiplied as. Without it they are what the checkpoint says, or, where it
quantizes weights alone, what the device is best at.
"""

from __future__ import annotations


def register() -> None:
    """Tells vLLM of our kernels; vLLM may call it several times in a process."""
    import torch  # noqa: PLC0415  only vLLM calls this
    from vllm.model_executor.kernels.linear import (  # noqa: PLC0415
        _POSSIBLE_MXFP4_KERNELS,
        register_linear_kernel,
    )
    from vllm.model_executor.layers.quantization import (  # noqa: PLC0415
        register_quantization_config,
    )
    from vllm.platforms import PlatformEnum, current_platform  # noqa: PLC0415

    from mx_kernels.checkpoints.configs import OURS  # noqa: PLC0415
    from mx_kernels.integrations.vllm.config import MXVllmConfig  # noqa: PLC0415
    from mx_kernels.integrations.vllm.experts import GPT_OSS, GptOssConfig  # noqa: PLC0415
    from mx_kernels.integrations.vllm.linear import MXLinearKernel  # noqa: PLC0415

    register_quantization_config(OURS)(MXVllmConfig)
    if not current_platform.is_cpu():
        return
    # Linux lets a process use AMX that asks for it. vLLM's attention leaves that to oneDNN, which
    # with our layers never runs: an illegal instruction would end the process.
    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()
    register_quantization_config(GPT_OSS)(GptOssConfig)
    if MXLinearKernel not in _POSSIBLE_MXFP4_KERNELS.get(PlatformEnum.CPU, ()):
        register_linear_kernel(MXLinearKernel, PlatformEnum.CPU, "mxfp4")
