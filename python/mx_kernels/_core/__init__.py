"""What is private, in one room.

    facts          formats, layouts and dtypes, as the extension module tells them
    arrays         tensors and arrays as addresses; storage says what an operand's bytes are
    checks         what a call may be given
    protocol       the fields of a call; calls and products write them
    devices        who computes: the CPU; cuda; hip
    native         extension modules for this machine and its `levels`; builds keeps them in the
                   cache, trust says what of it is loaded
    torch_ops      the operators that torch knows, with their derivatives; expert_ops, fused_ops
    tensor_ops     what torch does with an MXTensor; tensor_products
    moved          old paths of modules

Nothing here is for who uses the package.
"""
