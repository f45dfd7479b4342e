"""Other libraries, one room each.

    transformers/         models with MX weights: loaded, saved, in 4 bits
    torchao               `quantize_(model, MXConfig())`
    vllm/                 a plugin that vLLM finds by its entry point
    max_pipelines/        models of MAX, by `--custom-architectures mx_kernels.max_pipelines`
    distributed/          models over ranks: styles, experts, checkpoints
    torch_distributed     what torch's own wrappers ask of an MXTensor and an MXLinear
    offload               what accelerate writes to disk
    saving                `save_pretrained` of what `convert` returned

None of these libraries is imported before it is asked for.
"""

ACTIVATIONS = "MX_KERNELS_ACTIVATIONS"
"""The variable that names what activations are multiplied as where another program serves."""
REST = "MX_KERNELS_REST"
"""The variable that names what MAX's pipelines quantize linear layers to that are floats yet."""
