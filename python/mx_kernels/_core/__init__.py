"""What is private, in one room: nothing here is imported by who uses the package.

facts        formats, layouts and dtypes, as the extension module tells them
arrays       tensors and arrays as addresses; storage says what an operand's bytes are
checks       what a call may be given
calls        the call protocol's writer; repeats launches calls that are like one before
launch       the launcher of a device: the CPU's, cuda, hip
native       extension modules, compiled for this machine; builds keeps them in the cache
torch_ops    the operators that torch knows; tensor_ops what torch does with an MXTensor
"""
