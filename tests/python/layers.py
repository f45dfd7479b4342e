"""Small models, and what was done to them, for the tests of `convert`."""

import torch
from torch import nn

import mx_kernels as mx


def float_linear(out_features=40, in_features=96, seed=5, bias=True):
    torch.manual_seed(seed)
    return nn.Linear(in_features, out_features, bias)


def x_of(*lead, k=96):
    torch.manual_seed(6)
    return torch.randn(*lead, k)


def reasons(model, **choices):
    """Converts a model; returns why each layer was kept, None for those converted."""
    report = mx.conversion_report(mx.convert(model, **choices))
    return {layer.name: layer.reason for layer in report.layers}


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.lm_head = float_linear(96), float_linear(200)
