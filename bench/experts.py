"""A layer of experts as gpt-oss has it, what is promised of it, and the table that shows it.

    tokens [T, H] --> gate_up [E, 2I, H] --> gated --> down [E, H, I] --> sum over k experts

Weights are random bytes: time does not depend on them, and rounding a gigabyte of floats would
take longer than measuring. Each call takes the next of several routings, so that one token
meets experts that are in no cache, as it does in a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle

import torch

import mx_kernels as mx
from bench.goals import Goal, Measured
from bench.report import Table
from bench.rows import OURS, Row

MODES = {"moe mxfp4": "mxfp4", "moe mxint8": "mxint8", "moe bf16": "bf16"}
"""Operations, and what activations are multiplied as."""
LLAMA_CPP, READ, LOOP, TRANSFORMERS = (
    "llama.cpp MXFP4", "one read of the weights", "mx.linear in a loop", "transformers bf16",
)  # fmt: skip
LIMIT, ALPHA = 7.0, 1.702
"""Of the gated activation."""
MAX_TIMES_READ = 1.5
"""Of one token, in units of reading the weights of its experts once."""
SCALE_BITS = range(116, 122)
"""The scale bytes of the weights: numbers about as large as a trained layer's."""
ROUTINGS = 16


@dataclass(frozen=True)
class Sizes:
    """Of a layer."""

    experts: int
    active: int
    hidden: int
    intermediate: int


GPT_OSS_20B = Sizes(experts=32, active=4, hidden=2880, intermediate=2880)
SMALL = Sizes(experts=8, active=2, hidden=192, intermediate=160)
"""Of a trial run."""
TOKENS, QUICK_TOKENS = (1, 4, 32, 256), (1, 5)


class Layer:
    """Weights and biases in the forms that the systems want, and tokens with their experts."""

    def __init__(self, sizes: Sizes):
        self.sizes = sizes
        self.random = torch.Generator().manual_seed(sizes.experts)
        e, h, i = sizes.experts, sizes.hidden, sizes.intermediate
        self.gate_up = self._weights(e, 2 * i, h)
        self.down = self._weights(e, h, i)
        self.bias_gate_up = torch.randn(e, 2 * i, generator=self.random) / 8
        self.bias_down = torch.randn(e, h, generator=self.random) / 8

    def _weights(self, *shape: int) -> mx.MXTensor:
        *lead, k = shape
        codes = torch.randint(0, 256, (*lead, k // 2), dtype=torch.uint8, generator=self.random)
        low, high = SCALE_BITS.start, SCALE_BITS.stop
        scales = torch.randint(
            low, high, (*lead, k // 32), dtype=torch.uint8, generator=self.random
        )
        return mx.MXTensor(codes, scales)

    @cached_property
    def preshuffled(self) -> tuple[mx.MXTensor, mx.MXTensor]:
        """The weights as the CPU reads them."""
        return self.gate_up.preshuffle(), self.down.preshuffle()

    def tokens(self, count: int) -> torch.Tensor:
        """Returns tokens, bfloat16 [count, H]."""
        return torch.randn(count, self.sizes.hidden, generator=self.random).bfloat16()

    def routings(self, tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns experts, int32 [tokens, k], and their weights, several times."""
        count = min(ROUTINGS, max(2, self.sizes.experts // self.sizes.active))
        found = []
        for _ in range(count):
            scores = torch.randn(tokens, self.sizes.experts, generator=self.random)
            top = scores.topk(self.sizes.active)
            found.append((top.indices.int(), top.values.softmax(-1)))
        return found

    def ours(self, x: torch.Tensor, ids, weights, activations: str) -> torch.Tensor:
        """Computes the layer with `mx.moe`."""
        biases = {"bias_gate_up": self.bias_gate_up, "bias_down": self.bias_down}
        return mx.moe(x, *self.preshuffled, ids, weights, **biases, activations=activations)

    def looped(self, x: torch.Tensor, ids, weights, activations: str) -> torch.Tensor:
        """Computes the layer as a user without `mx.moe` would: `mx.linear` for each expert."""
        gate_up, down = self._experts
        out = torch.zeros(x.shape, dtype=torch.float32)
        for e in ids.unique().tolist():
            token, slot = torch.where(ids == e)
            both = mx.linear(
                x[token], gate_up[e], bias=self.bias_gate_up[e], activations=activations
            )
            gate, up = both[:, ::2].clamp(max=LIMIT), both[:, 1::2].clamp(-LIMIT, LIMIT)
            hidden = (up + 1) * gate * torch.sigmoid(ALPHA * gate)
            y = mx.linear(
                hidden,
                down[e],
                bias=self.bias_down[e],
                activations=activations,
                out_dtype="float32",
            )
            out.index_add_(0, token, y * weights[token, slot, None])
        return out.to(x.dtype)

    @cached_property
    def _experts(self) -> tuple[list[mx.MXTensor], list[mx.MXTensor]]:
        return tuple(list(w.unbind(0)) for w in self.preshuffled)

    def read(self, ids: torch.Tensor) -> int:
        """Reads the codes and scales of the experts that a call needs, once."""
        total = 0
        for w in self.preshuffled:
            for part in (w.codes, w.scales):
                words = part.view(part.shape[0], -1).view(torch.int64)
                for e in ids.unique().tolist():
                    total += int(words[e].sum())
        return total

    def flops(self, tokens: int) -> int:
        """Returns the operations of a call: two for a product."""
        sizes = self.sizes
        return 6 * tokens * sizes.active * sizes.hidden * sizes.intermediate


def in_turn(call, routings):
    """Returns a call without arguments that takes the next routing each time."""
    turns = cycle(routings)
    return lambda: call(*next(turns))


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table a thread count: a row for each operation and number of tokens."""
    found = {(row.op, row.m, row.threads, row.system): row for row in rows}
    systems = [name for name in dict.fromkeys(row.system for row in rows) if name not in (OURS, "")]
    made = []
    for threads in sorted({row.threads for row in rows}):
        cells = []
        for op, tokens in dict.fromkeys((r.op, r.m) for r in rows if r.threads == threads):
            ours = found[op, tokens, threads, OURS]
            others = (found.get((op, tokens, threads, name)) for name in systems)
            cells.append([
                op, str(tokens), f"{_ms(ours)}{_error(ours)}", f"{ours.rate:.0f}",
                *(f"{_ms(o)} ({o.times_ours:.2f}){_error(o)}" if o else "" for o in others),
            ])  # fmt: skip
        title = (
            f"A layer of gpt-oss-20b's experts, {threads} thread{'s' * (threads != 1)}: median ms; "
            "in brackets, times as long as mx_kernels; the error against unrounded activations"
        )
        made.append(Table(title, ["op", "tokens", "mx.moe, ms", "GOP/s", *systems], cells))
    return made


def _ms(row: Row) -> str:
    return f"{row.time_us_median / 1e3:.2f}"


def _error(row: Row) -> str:
    return "" if row.error_own_weights is None else f" {row.error_own_weights:.1%}"


def text(rows: Sequence[Row]) -> str:
    """Returns the tables as a document."""
    first = rows[0]
    parts = [f"{first.device}; commit {first.commit}, {first.date}."]
    return "\n\n".join(parts + [part.to_markdown() for part in tables(rows)])


def check_goals(rows: Sequence[Row]) -> Iterator[Goal]:
    """Faster than every peer of the same accuracy; one token near one read of its weights."""
    measured = Measured(rows)
    for row in rows:
        if row.system != OURS:
            continue
        name = f"{row.op}, {row.m} token{'s' * (row.m != 1)}"
        for peer in (LLAMA_CPP, LOOP, TRANSFORMERS):
            if other := measured.find(row.op, row.shape, peer, row.threads):
                yield Goal(f"{name}: times faster than {peer}", row.threads, other.times_ours, 1.0)
        read = measured.find(row.op, row.shape, READ, row.threads)
        if row.m == 1 and read:
            yield Goal(f"{name}: times as long as {READ}", row.threads, 1 / read.times_ours,
                       MAX_TIMES_READ, at_most=True)  # fmt: skip
