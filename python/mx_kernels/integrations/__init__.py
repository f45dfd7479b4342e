"""Other libraries, one room each.

    transformers/         models with MX weights: loaded, saved, in 4 bits
    vllm/                 a plugin that vLLM finds by its entry point
    distributed/          models over ranks: styles, experts, checkpoints
    torch_distributed     what torch's own wrappers ask of an MXTensor and an MXLinear
    offload               what accelerate writes to disk
    saving                `save_pretrained` of what `convert` returned

None of these libraries is imported before it is asked for.
"""
