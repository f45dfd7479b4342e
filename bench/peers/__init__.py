"""The systems that `mx_kernels` is compared with, one module each.

A peer turns a `Problem` into a call that can be timed and an output that can be
checked. No peer has our semantics: only `mx_kernels` rounds both operands to
MXFP4, so every peer says what it does instead (`computes`), and which of our modes is as
accurate (`like`): its time is compared with that mode's. To add one, write a module with
`PEERS` (and `QUANTIZERS`, if it has one) and list it in `MODULES`.

Modules whose package is an optional extra are left out when it is missing, and
`load_peers` says so.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bench.problem import Errors, Problem

MODULES = (
    ("bench.peers.torch_peers", "torch"),
    ("bench.peers.torch_low_bit", "torch"),
    ("bench.peers.max_q4_0", "max"),
    ("bench.peers.onnx_runtime", "onnxruntime"),
    ("bench.peers.llama_cpp", "ggml"),
)
"""Peer module and the package it cannot do without."""

INSTALL_EXTRA = ".venv/bin/pip install -e '.[bench-peers]'"

MAX_RELATIVE_ERROR = 0.2
"""Against the product with a system's own weights. Activations rounded to four bits give about
0.12; a wrong byte order or a swapped operand gives about 1.4."""
LIKE_INT8, LIKE_FLOAT = "linear mxint8", "linear bf16"
"""Our modes that other systems compare with: activations of eight bits, or unrounded."""


@dataclass(frozen=True)
class Prepared:
    """A competitor with its operands in place."""

    call: Callable[[], object]
    output: Callable[[], torch.Tensor]
    """Returns the product of the latest call, [M, N]."""
    weights: Callable[[], torch.Tensor]
    """Returns the weights that it multiplies by, dequantized, [N, K]."""


@dataclass(frozen=True)
class Peer:
    """One system to compare with."""

    name: str
    computes: str
    """What it computes instead of MXFP4 times MXFP4."""
    prepare: Callable[[Problem], Prepared]
    like: str = LIKE_INT8
    """Our mode whose arithmetic is as accurate, of `targets.OPS`."""


@dataclass(frozen=True)
class Quantizer:
    """A system that only rounds to MXFP4."""

    name: str
    computes: str
    prepare: Callable[[torch.Tensor], Callable[[], object]]


@dataclass(frozen=True)
class Peers:
    """Everything to compare with on this machine."""

    products: list[Peer]
    quantizers: list[Quantizer]
    missing: list[str]
    """A sentence for each system whose package is not installed, or is slow on this processor."""


def load_peers() -> Peers:
    """Imports the peers whose packages are installed and names the others."""
    peers = Peers([], [], [])
    for module_name, package in MODULES:
        if importlib.util.find_spec(package):
            module = importlib.import_module(module_name)
            peers.products.extend(module.PEERS)
            peers.quantizers.extend(getattr(module, "QUANTIZERS", ()))
            peers.missing.extend(getattr(module, "LEFT_OUT", ()))
        else:
            peer = module_name.rpartition(".")[2]
            peers.missing.append(f"{peer}: rows left out, `{INSTALL_EXTRA}` adds them")
    return peers


def check(name: str, prepared: Prepared, problem: Problem) -> Errors:
    """Returns the errors of a competitor's product.

    Raises:
        RuntimeError: if it is further off than four-bit activations explain.
    """
    errors = problem.errors(prepared.output(), prepared.weights())
    if not errors.own_weights < MAX_RELATIVE_ERROR:
        raise RuntimeError(
            f"{name} does not compute x @ w.T at {problem.shape}: relative error "
            f"{errors.own_weights:.3g}, expected below {MAX_RELATIVE_ERROR}; its time would mean "
            "nothing"
        )
    return errors
