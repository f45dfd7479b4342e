"""What this repository promises of its kernels, checked on measured rows.

Every goal is a ratio or a rate with the value it has to reach, for one thread
count. A goal whose rows were not measured is not listed. A system is compared with that of our
modes which is as accurate: 8-bit activations with `linear mxint8`, floats with `linear bf16`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.rows import OURS, ModelRow, Row
from bench.shapes import QUANTIZE_SHAPE
from bench.targets import QUANTIZERS

MADE_ON = "Zen 4 and Zen 5 (AVX-512 BF16)"
"""The CPUs whose measurements the goals of a CPU come from."""
FOUR_BIT_PEERS = ("MAX Q4_0", "ONNX Runtime", "llama.cpp MXFP4", "llama.cpp Q4_0")
LARGE = ((64, 7168, 2048), (256, 3072, 1536), (512, 4096, 4096))
MEDIUM = ((16, 2112, 7168), (32, 4096, 512), (32, 2880, 512))
SMALL = (4, 2880, 512)
INTEGER_OPS = ("linear", "linear mxint8")
"""Products on the integer dot product."""
ON_GPU = 0
"""The threads of rows from a GPU."""
GPU_PEERS = ("cuBLAS bf16", "humming")
GPU_FEW = (
    (1, 4096, 4096), (1, 14336, 4096), (16, 14336, 4096), (16, 2112, 7168), (64, 7168, 2048),
    (4, 2880, 512), (32, 4096, 512), (32, 2880, 512),
)  # fmt: skip
"""Shapes where reading weights of four bits is to be faster than all else."""
GPU_ONE_ROW = (1, 14336, 4096)
GPU_LARGE = ((512, 4096, 4096), (4096, 4096, 4096), (8192, 8192, 8192))
MIN_SHARE_OF_CUBLAS = 0.85
MAX_GPU_ROOFLINE = 1 / 0.6
"""With one row, in units of the time that reading everything once takes at the speed of a copy."""
MIN_SHARE_OF_COPY = 0.7
MAX_OVERHEAD_US = 10.0
MAX_TIMES_ROOFLINE = 1.4
MIN_QUANTIZE_GB_PER_S = 4.6
INT8_PEAK, BF16_PEAK = "int8 dot product", "bf16 product"
"""Rows of the machine: what torch reaches with a large square product."""
MANY_ROWS = 16
"""From so many on arithmetic binds, not reading weights."""
MIN_SHARE_OF_PEAK = 0.6
"""Of the int8 peak, with `MANY_ROWS` or more."""
MAX_MXINT8_ERROR = 1.0
"""Percent, against the product with the dequantized weights."""
MAX_TIMES_MXFP4 = 1.08
"""Time with MXINT8 activations over that with MXFP4 ones."""
MAX_MORE_ERROR = 1.0
"""Percent of the product with float weights that weights of another format may be better by."""
MIN_SHARE_OF_W4A4 = 0.95
"""Of the sentences a second of W4A4, with MXINT8 activations."""
SAME_COSINE = 0.002
MIN_SPEEDUP_OF_ONE_ROW = 4.0
"""Of weights of four bits over those of 16, where reading them is all there is to do."""
MIN_SPEEDUP_OF_MANY_ROWS = 16 / 17
"""Of the same where arithmetic is all: a scale costs one operation for 16 of the product."""
MIN_SHARE_OF_KEPT = 0.95
"""Of the rate with bfloat16 activations, with activations of eight bits."""
MIN_SHARE_OF_FOUR_BITS = 0.5
"""Of the bytes a second that the MXFP4 quantizer reads, for those to eight bits."""
SAME = 0.97
"""Share of a rate that counts as equal to it: medians repeat to about 3 %."""


@dataclass(frozen=True)
class Goal:
    """One promise and what was measured."""

    text: str
    threads: int
    measured: float
    wanted: float
    at_most: bool = False
    """Whether `wanted` is an upper limit instead of a lower one."""

    @property
    def reached(self) -> bool:
        """Whether the measured value keeps the promise."""
        return self.measured <= self.wanted if self.at_most else self.measured >= self.wanted


class Measured:
    """The rows by what they are."""

    def __init__(self, rows: Iterable[Row]):
        self.rows = list(rows)
        self.by_key = {(r.op, r.shape, r.system, r.threads): r for r in self.rows}
        self.threads = sorted({row.threads for row in self.rows})

    def find(self, op: str, shape: Sequence[int], system: str, threads: int) -> Row | None:
        """Returns the row, or None if it was not measured."""
        return self.by_key.get((op, tuple(shape), system, threads))

    def peak(self, name: str, threads: int) -> float | None:
        """Returns a limit of the machine."""
        row = self.find("machine", (0, 0, 0), name, threads)
        return row.rate if row else None

    def ours(self, op: str, threads: int) -> list[Row]:
        """Returns our rows of one operation and thread count."""
        return [r for r in self.rows if (r.op, r.system, r.threads) == (op, OURS, threads)]


def check_goals(rows: Iterable[Row]) -> list[Goal]:
    """Returns every promise that the rows can answer."""
    measured = Measured(rows)
    goals = []
    for threads in measured.threads:
        if threads == ON_GPU:
            goals += _gpu(measured)
            continue
        goals += _overhead(measured, threads)
        for op in INTEGER_OPS:
            for row in measured.ours(op, threads):
                goals += _integers(measured, row, threads)
        for row in measured.ours("linear mxint8", threads):
            goals += _linear_mxint8(measured, row, threads)
        goals += _weights(measured, threads)
        for row in measured.ours("linear bf16", threads):
            goals += _linear_bf16(measured, row, threads)
        for row in measured.ours("linear mxfp8", threads):
            goals += _linear_mxfp8(measured, row, threads)
        goals += _quantize(measured, threads)
    return goals + list(_scaling(measured))


def _gpu(measured: Measured) -> Iterator[Goal]:
    """Faster than float products and other 4-bit kernels; near cuBLAS where it computes most."""
    for op in ("linear", "linear bf16"):
        for row in measured.ours(op, ON_GPU):
            name = f"{op} {' x '.join(map(str, row.shape))}"
            wanted = dict.fromkeys(GPU_PEERS, 1.0) if row.shape in GPU_FEW else {}
            if row.shape in GPU_LARGE:
                wanted = {GPU_PEERS[0]: MIN_SHARE_OF_CUBLAS}
            for peer, least in wanted.items():
                if found := measured.find(op, row.shape, peer, ON_GPU):
                    text = f"{name}: times faster than {peer}"
                    yield Goal(text, ON_GPU, found.times_ours, least)
            if row.shape == GPU_ONE_ROW:
                yield Goal(f"{name}: times the memory roofline", ON_GPU, row.times_roofline,
                           MAX_GPU_ROOFLINE, at_most=True)  # fmt: skip
    for row in measured.ours("quantize", ON_GPU):
        copy = measured.find("quantize", row.shape, "torch copy", ON_GPU)
        yield Goal("quantize: share of a copy's GB/s", ON_GPU, row.rate / copy.rate,
                   MIN_SHARE_OF_COPY)  # fmt: skip


def _overhead(measured: Measured, threads: int) -> Iterator[Goal]:
    for row in measured.ours("overhead", threads):
        yield Goal("us a call of linear on one block", threads, row.time_us_median,
                   MAX_OVERHEAD_US, at_most=True)  # fmt: skip


def _integers(measured: Measured, row: Row, threads: int) -> Iterator[Goal]:
    """Near what memory allows with one row, near the processor's peak with many."""
    name = f"{row.op} {row_name(row)}"
    peak = measured.peak(INT8_PEAK, threads)
    if row.m == 1:
        yield Goal(f"{name}: times the memory roofline", threads, row.times_roofline,
                   MAX_TIMES_ROOFLINE, at_most=True)  # fmt: skip
    elif row.m >= MANY_ROWS and peak:
        text = f"{name}: share of the int8 peak"
        yield Goal(text, threads, row.rate / peak, MIN_SHARE_OF_PEAK)


def _linear_mxint8(measured: Measured, row: Row, threads: int) -> Iterator[Goal]:
    """As exact as 8-bit activations are, as fast as 4-bit ones, faster than who has them too."""
    name = f"{row.op} {row_name(row)}"
    if row.error_own_weights is not None:
        yield Goal(f"{name}: error against its weights, %", threads, 100 * row.error_own_weights,
                   MAX_MXINT8_ERROR, at_most=True)  # fmt: skip
    if mxfp4 := measured.find("linear", row.shape, OURS, threads):
        times = row.time_us_median / mxfp4.time_us_median
        yield Goal(f"{name}: times as long as MXFP4 activations", threads, times,
                   MAX_TIMES_MXFP4, at_most=True)  # fmt: skip
    wanted = dict.fromkeys(FOUR_BIT_PEERS, 1.5 if row.shape == SMALL else 1.0)
    if row.shape in LARGE + MEDIUM:
        wanted["torch int8"] = 1.0
    elif row.shape == SMALL:
        wanted["torch int8"] = 1.5
    for peer, least in wanted.items():
        if other := measured.find(row.op, row.shape, peer, threads):
            yield Goal(f"{name}: times faster than {peer}", threads, other.times_ours, least)


def _weights(measured: Measured, threads: int) -> Iterator[Goal]:
    """What the format of the weights costs, at the worst shape for each peer of four bits."""
    for peer in FOUR_BIT_PEERS:
        more = [
            100 * (row.error_float_weights - other.error_float_weights)
            for row in measured.ours("linear mxint8", threads)
            if (other := measured.find(row.op, row.shape, peer, threads))
            and None not in {row.error_float_weights, other.error_float_weights}
        ]
        if more:
            text = f"linear mxint8: error against float weights, % more than {peer}"
            yield Goal(text, threads, max(more), MAX_MORE_ERROR, at_most=True)


def _linear_bf16(measured: Measured, row: Row, threads: int) -> Iterator[Goal]:
    """Weights of four bits make few rows faster than those of 16, many rows not slower."""
    wanted = MIN_SPEEDUP_OF_ONE_ROW if row.m == 1 else MIN_SPEEDUP_OF_MANY_ROWS
    for system, least in {"torch bf16": wanted, "torch f32": 1.0, "torch W4A16": 1.0}.items():
        if peer := measured.find(row.op, row.shape, system, threads):
            text = f"{row.op} {row_name(row)}: times faster than {system}"
            yield Goal(text, threads, peer.times_ours, least)


def _linear_mxfp8(measured: Measured, row: Row, threads: int) -> Iterator[Goal]:
    """Rounding activations to eight bits costs next to nothing, and beats float weights."""
    name = f"{row.op} {row_name(row)}"
    if peer := measured.find("linear bf16", row.shape, "torch bf16", threads):
        ratio = peer.time_us_median / row.time_us_median
        yield Goal(f"{name}: times faster than torch bf16", threads, ratio, 1.0)
    if kept := measured.find("linear bf16", row.shape, OURS, threads):
        share = kept.time_us_median / row.time_us_median
        yield Goal(f"{name}: share of our bf16 rate", threads, share, MIN_SHARE_OF_KEPT)


def _quantize(measured: Measured, threads: int) -> Iterator[Goal]:
    rows, k = QUANTIZE_SHAPE
    row = measured.find("quantize", (rows, 0, k), OURS, threads)
    if row:
        yield Goal(f"quantize {rows} x {k}: GB/s", threads, row.rate, MIN_QUANTIZE_GB_PER_S)
        for op in QUANTIZERS[1:]:
            if wide := measured.find(op, (rows, 0, k), OURS, threads):
                text = f"{op} {rows} x {k}: share of MXFP4's bytes a second"
                yield Goal(text, threads, wide.rate / row.rate, MIN_SHARE_OF_FOUR_BITS)


def _scaling(measured: Measured) -> Iterator[Goal]:
    """Threads never cost time, and bring as much as they bring a product of floats."""
    worst: dict[tuple[str, int], Row] = {}
    for row in measured.rows:
        if row.system == OURS and row.times_one_thread is not None:
            known = worst.setdefault((row.op, row.threads), row)
            if row.times_one_thread < known.times_one_thread:
                worst[row.op, row.threads] = row
    for (op, threads), row in worst.items():
        text = f"{op}: times as fast as one thread, at least ({row_name(row)})"
        yield Goal(text, threads, row.times_one_thread, SAME)
    few, many = min(measured.threads, default=0), max(measured.threads, default=0)

    def speedup(op: str, shape, system: str) -> float | None:
        before, after = (measured.find(op, shape, system, count) for count in (few, many))
        return before.time_us_median / after.time_us_median if before and after else None

    for shape in LARGE if few < many else ():
        for op in INTEGER_OPS:
            ours, floats = speedup(op, shape, OURS), speedup("linear bf16", shape, "torch f32")
            if ours is not None and floats is not None:
                name = f"{op} {' x '.join(map(str, shape))}"
                yield Goal(f"{name}: speed-up over that of torch f32", many, ours / floats, SAME)


def check_model_goals(rows: Iterable[ModelRow]) -> list[Goal]:
    """Returns the promises that the sentence encoder can answer."""
    found = {row.variant: row for row in rows}
    goals = []
    if ours := found.get("W4A8 mxint8"):
        if fast := found.get("W4A4"):
            share = ours.sentences_per_s / fast.sentences_per_s
            text = "sentence encoder, mxint8: share of W4A4's sentences a second"
            goals.append(Goal(text, ours.threads, share, MIN_SHARE_OF_W4A4))
        if exact := found.get("W4 only"):
            text = "sentence encoder, mxint8: mean cosine less that of float activations"
            more = ours.cosine_mean - exact.cosine_mean
            goals.append(Goal(text, ours.threads, more, -SAME_COSINE))
    return goals


def row_name(row: Row) -> str:
    """Returns the sizes of a row's shape that it has."""
    return " x ".join(str(size) for size in row.shape if size)
