"""Checkpoints: files of codes and scales become MXTensors by name, and back.

    load(path)           any form of the table, to a dict of MXTensors and tensors
    save(tensors, path)  our own form, which `load` reads
    convert(path, out)   a checkpoint in another form, quantized on the way if it is not yet

        files.py      which tensors there are, from the headers alone; one at a time
        gguf_files.py the same of GGUF, by its library
        configs.py    what a config says of quantization, found and checked
        methods.py    what that means for a module: a table, a row a quantization method
        scales.py     which format codes and scales are, and the scales as it has them
        forms.py      which tensors are the parts of which parameter: a table
        joining.py    one tensor an expert becomes one of all experts
        rest.py       what is quantized as it is read, of floats
        leftovers.py  what is in no pair: tensors, or halves that are refused
        loading.py    parameters as they are wanted: on a device, preshuffled
        writing.py    safetensors files, a tensor at a time, complete or not at all
        targets.py    what a parameter is called in each form that we write, and the config there
        converting.py from one form to another
        floats.py     which weights of floats stay, and which axis of the others is K

Nothing is read before every name, dtype and shape has been checked against the headers.
"""

from mx_kernels.checkpoints.converting import Conversion, convert
from mx_kernels.checkpoints.loading import load
from mx_kernels.checkpoints.writing import save

__all__ = ["Conversion", "convert", "load", "save"]
