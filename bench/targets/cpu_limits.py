"""How many rows the CPU's kernels take at once: every choice timed, and a row of their table.

For each kind of weights and each number of rows all sizes of groups take turns (`bench.timing`):
groups that decode weights in registers, and groups whose weights were decoded beforehand. What is
chosen is, over the numbers of rows, the geometric mean's least:

    in registers    the size of the first kind of groups, of all weights of a kernel
    decoded         the same of the second kind
    rows of ...     up to how many rows the first kind is taken, by weights of four bits or eight

One thread. `mojo_kernels/cpu/limits.mojo` has the table; all choices give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

import mx_kernels as mx
from bench import timing
from bench.report import Table
from bench.rows import Origin
from bench.timing import Competitor
from mx_kernels._core.facts import facts

KERNELS = {"bytes": ("mxint8", ("mxfp4", "mxint8")), "floats": ("bf16", ("mxfp4", "mxint8"))}
"""Numbered from 1 on, see `cpu/limits.mojo`: activations, and weights of four bits and of eight."""
N, K = 2880, 2880
ROWS = (5, 8, 12, 13, 16, 20, 24, 28, 36, 37, 48, 64, 96, 128, 256)
QUICK_ROWS = (5, 16)
BUDGET_S, QUICK_BUDGET_S = 1.5, 0.05
"""Seconds of timing for each number of rows."""
SMALLER = 3
"""Sizes of groups that are tried: the largest, and so many in all."""
ALL = (1 << 63) - 1
IN_REGISTERS, DECODED = "in registers", "decoded"


class Limits(NamedTuple):
    """The limits of a kernel, as `cpu/limits.mojo` has them."""

    in_registers: int
    rows_of_nibbles: int
    rows_of_bytes: int
    decoded: int

    def form(self, weights: str, rows: int) -> tuple[str, int]:
        """Returns what a product of so many rows is."""
        most = self.rows_of_nibbles if weights == "mxfp4" else self.rows_of_bytes
        return (IN_REGISTERS, self.in_registers) if rows <= most else (DECODED, self.decoded)


def told(kernel: str, new: Limits | None = None) -> dict[str, int | str]:
    """Returns what the kernels say of their limits, after they became `new`."""
    return facts().native.limits((1 + list(KERNELS).index(kernel), *(new or ())))


def limits(kernel: str, new: Limits | None = None) -> Limits:
    """Returns the limits of a kernel, after they became `new`."""
    found = told(kernel, new)
    return Limits(*(found[name] for name in Limits._fields))


@dataclass(frozen=True, kw_only=True)
class LimitsRow:
    """One size of groups with one number of rows."""

    kernel: str
    weights: str
    m: int
    form: str
    size: int
    time_us_median: float
    is_chosen: bool
    """Whether it is what the kernels do now."""
    level: str
    device: str
    commit: str
    date: str


def measure_rows(
    origin: Origin, say: Callable[[str], None], *, quick: bool = False
) -> Iterator[LimitsRow]:
    """Yields a row for each kernel, weights, number of rows and size of groups."""
    torch.set_num_threads(1)
    for kernel, (_, formats) in KERNELS.items():
        level = told(kernel)["level"]
        for weights in formats:
            say(f"{kernel}, {weights}")
            for m in QUICK_ROWS if quick else ROWS:
                found = timed(kernel, weights, m, QUICK_BUDGET_S if quick else BUDGET_S)
                chosen = limits(kernel).form(weights, m)
                for (form, size), times in found.items():
                    yield LimitsRow(
                        kernel=kernel, weights=weights, m=m, form=form, size=size, level=level,
                        time_us_median=times.median_us, is_chosen=(form, size) == chosen,
                        **vars(origin),
                    )  # fmt: skip


def timed(
    kernel: str, weights: str, m: int, budget_s: float
) -> dict[tuple[str, int], timing.Timing]:
    """Returns the time of a product by what it is, those of all sizes of groups in turns."""
    before, said = limits(kernel), told(kernel)
    generator = torch.Generator().manual_seed(m)
    w = mx.quantize(torch.randn(N, K, generator=generator), format=weights).preshuffle()
    x = torch.randn(m, K, generator=generator).bfloat16()
    call = partial(mx.linear, x, w, activations=KERNELS[kernel][0])
    forms = {}
    for form, name in ((IN_REGISTERS, "most_in_registers"), (DECODED, "most_decoded")):
        for size in range(said[name], max(0, said[name] - SMALLER), -1):
            rows = ALL if form == IN_REGISTERS else 0
            sizes = (size, 1) if form == IN_REGISTERS else (1, size)
            forms[form, size] = Limits(sizes[0], rows, rows, sizes[1])
    competitors = [
        Competitor(f"{form} {size}", call, partial(limits, kernel, new))
        for (form, size), new in forms.items()
    ]
    try:
        found = timing.interleave(competitors, budget_s=budget_s)
    finally:
        limits(kernel, before)
    return {key: found[f"{key[0]} {key[1]}"] for key in forms}


def best(rows: Sequence[LimitsRow], kernel: str) -> Limits:
    """Returns the limits of the least times: sizes of groups first, then the rows between them."""
    times = {(r.weights, r.m, r.form, r.size): r.time_us_median for r in rows if r.kernel == kernel}
    sizes = {
        form: min(
            {key[3] for key in times if key[2] == form},
            key=lambda size, form=form: sum(
                math.log(us) for key, us in times.items() if key[2:] == (form, size)
            ),
        )
        for form in (IN_REGISTERS, DECODED)
    }
    ends = []
    for weights in KERNELS[kernel][1]:
        counts = sorted({m for w, m, *_ in times if w == weights})

        def cost(most: int, weights=weights, counts=counts) -> float:
            forms = [(IN_REGISTERS if m <= most else DECODED) for m in counts]
            return sum(
                math.log(times[weights, m, form, sizes[form]])
                for m, form in zip(counts, forms, strict=True)
            )

        most = min([0, *counts], key=cost)
        ends.append(ALL if most == counts[-1] else most)
    return Limits(sizes[IN_REGISTERS], *ends, sizes[DECODED])


def tables(rows: Sequence[LimitsRow]) -> list[Table]:
    """Returns what to choose, and how far what is chosen is behind the best of each number."""
    chosen = [
        [kernel, rows[0].level, *(_count(value) for value in best(rows, kernel)),
         " ".join(_count(value) for value in limits(kernel))]
        for kernel in KERNELS
    ]  # fmt: skip
    heads = ["kernel", "level", *(name.replace("_", " ") for name in Limits._fields), "now"]
    cells = []
    for kernel, (_, formats) in KERNELS.items():
        for weights in formats:
            for m in sorted({row.m for row in rows}):
                found = [r for r in rows if (r.kernel, r.weights, r.m) == (kernel, weights, m)]
                least = min(found, key=lambda row: row.time_us_median)
                now = next(row for row in found if row.is_chosen)
                behind = now.time_us_median / least.time_us_median
                cells.append([kernel, weights, str(m), f"{now.form} {now.size}",
                              f"{least.form} {least.size}", f"{behind:.2f}"])  # fmt: skip
    behind_heads = ["kernel", "weights", "rows", "now", "best", "time now over best"]
    return [
        Table("limits of least time", heads, chosen),
        Table(f"groups, {N} x {K}, one thread", behind_heads, cells),
    ]


def _count(value: int) -> str:
    return "all" if value == ALL else str(value)


def text(rows: Sequence[LimitsRow]) -> str:
    """Returns the tables as a document."""
    origin = f"{rows[0].device}; commit {rows[0].commit}, {rows[0].date}."
    parts = (origin, (__doc__ or "").strip(), *(t.to_markdown() for t in tables(rows)))
    return "\n\n".join(parts) + "\n"
