"""A layer of gpt-oss-20b's experts on the CPU: `mx.moe` and its peers, by number of tokens.

All systems get the same weights, bit for bit, and take turns (`bench.timing`). Each is checked
against ours with unrounded activations before it is timed.
"""

from __future__ import annotations

import importlib.util

import torch

from bench import timing
from bench.experts import (
    GPT_OSS_20B,
    LLAMA_CPP,
    LOOP,
    MODES,
    QUICK_TOKENS,
    READ,
    SMALL,
    TOKENS,
    TRANSFORMERS,
    Layer,
    in_turn,
)
from bench.peers import INSTALL_EXTRA
from bench.rows import OURS, Origin, Row
from bench.targets import Plan, Reporter
from bench.timing import Competitor

MAX_RELATIVE_ERROR = 0.35
"""Against ours with unrounded activations. Rounding to four bits before both products gives about
0.2, a wrong order of rows or experts more than one."""
BUDGET_S, QUICK_BUDGET_S = 12.0, 0.2
"""Seconds of timing for each number of tokens."""
COMPUTES = {
    LLAMA_CPP: "the same weights, 8-bit integer activations, mul_mat_id",
    LOOP: "ours without `moe`: a product for each expert that is hit",
    TRANSFORMERS: "weights dequantized to bfloat16, transformers' own experts",
    READ: "a sum over the bytes of the experts that are hit",
}
LIKE = {LLAMA_CPP: "moe mxint8", LOOP: "moe mxint8", TRANSFORMERS: "moe bf16"}
"""Our mode whose arithmetic is as accurate; a read is compared with every mode."""


def measure(plan: Plan, origin: Origin, report: Reporter) -> None:
    """Reports a row for each system, mode and number of tokens."""
    torch.set_num_threads(plan.threads)
    sizes, counts = (SMALL, QUICK_TOKENS) if plan.quick else (GPT_OSS_20B, TOKENS)
    with torch.inference_mode():
        report.progress("making the weights")
        layer = Layer(sizes)
        peers = _peers(layer, report)
        for tokens in counts:
            report.progress(f"{tokens} tokens")
            x, routings = layer.tokens(tokens), layer.routings(tokens)
            calls = {op: _ours(layer, x, mode) for op, mode in MODES.items()}
            outputs = {}
            for name, prepare in peers.items():
                calls[name], outputs[name] = prepare(x)
            errors = _errors(calls, outputs, routings[0])
            calls[READ] = lambda ids, weights: layer.read(ids)
            competitors = [Competitor(n, in_turn(c, routings)) for n, c in calls.items()]
            budget = QUICK_BUDGET_S if plan.quick else BUDGET_S
            found = timing.interleave(competitors, budget_s=budget)
            for row in _rows(found, errors, tokens, layer, plan, origin):
                report.row(row)


def _ours(layer: Layer, x: torch.Tensor, mode: str):
    return lambda ids, weights: layer.ours(x, ids, weights, mode)


def _peers(layer: Layer, report: Reporter) -> dict:
    """Returns what makes a call of tokens, and its result, by system."""

    def loop(x):
        out = []
        return lambda *routing: out.append(layer.looped(x, *routing, "mxint8")), out.pop

    peers = {LOOP: loop}
    for name, module, package in (
        (LLAMA_CPP, "bench.peers.llama_cpp_experts", "ggml"),
        (TRANSFORMERS, "bench.peers.transformers_experts", "transformers"),
    ):
        if importlib.util.find_spec(package) is None:
            report.remark(f"{name}: rows left out, `{INSTALL_EXTRA}` adds them")
            continue
        report.progress(f"preparing {name}")
        peers[name] = importlib.import_module(module).Peer(layer).prepare
    return peers


def _errors(calls: dict, outputs: dict, routing) -> dict[str, float]:
    """Returns the relative errors against ours with unrounded activations.

    Raises:
        RuntimeError: if a system computes something else; its time would mean nothing.
    """
    expected, errors = calls["moe bf16"](*routing).float(), {}
    for name, call in calls.items():
        result = call(*routing)
        got = (outputs[name]() if name in outputs else result).float()
        error = errors[name] = float((got - expected).norm() / expected.norm())
        if not error < MAX_RELATIVE_ERROR:
            raise RuntimeError(
                f"{name} does not compute the layer: relative error {error:.3g}, expected below "
                f"{MAX_RELATIVE_ERROR}"
            )
    return errors


def _rows(  # noqa: PLR0917  all of them are what a row says
    found: dict, errors: dict, tokens: int, layer: Layer, plan: Plan, origin: Origin
):
    sizes = layer.sizes
    for op in MODES:
        ours = found[op]
        others = [name for name in found if name not in MODES and LIKE.get(name, op) == op]
        peers = {name: found[name] for name in others}
        for name, times in {OURS: ours, **peers}.items():
            error = errors.get(op if name == OURS else name)
            yield Row(
                op=op, m=tokens, n=sizes.intermediate, k=sizes.hidden, system=name,
                computes=COMPUTES.get(name, f"{MODES[op]} activations"), threads=plan.threads,
                time_us_median=times.median_us, time_us_best=times.best_us,
                rate=layer.flops(tokens) / times.median_us / 1e3, rate_unit="GOP/s",
                times_ours=times.median_us / ours.median_us, times_roofline=None,
                error_own_weights=error, **vars(origin),
            )  # fmt: skip
