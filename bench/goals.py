"""What this repository promises of its kernels, checked on measured rows.

Every goal is a ratio or a rate with the value it has to reach, for one thread
count. A goal whose rows were not measured is not listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.rows import OURS, Row
from bench.shapes import QUANTIZE_SHAPE
from bench.targets import OPS, QUANTIZERS

FOUR_BIT_PEERS = ("MAX Q4_0", "ONNX Runtime", "llama.cpp MXFP4", "llama.cpp Q4_0")
LARGE = ((64, 7168, 2048), (256, 3072, 1536), (512, 4096, 4096))
MEDIUM = ((16, 2112, 7168), (32, 4096, 512), (32, 2880, 512))
SMALL = (4, 2880, 512)
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

    def ratio(self, shape: Sequence[int], system: str, threads: int) -> float | None:
        """Returns how many times as long as our `linear` a system takes."""
        row = self.find("linear", shape, system, threads)
        return row.times_ours if row else None

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
        for row in measured.ours("linear", threads):
            goals += _linear(measured, row, threads)
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


def _linear(measured: Measured, row: Row, threads: int) -> Iterator[Goal]:
    shape, name = row.shape, " x ".join(map(str, row.shape))

    def against(peer: str, wanted: float) -> Iterator[Goal]:
        ratio = measured.ratio(shape, peer, threads)
        if ratio is not None:
            yield Goal(f"{name}: times faster than {peer}", threads, ratio, wanted)

    yield from against("torch f32", 1.0)
    for peer in FOUR_BIT_PEERS:
        yield from against(peer, _wanted_of_four_bit(shape, peer))
    if shape in LARGE + MEDIUM:
        yield from against("torch int8", 1.0)
    elif shape == SMALL:
        yield from against("torch int8", 1.5)
    if row.m == 1:
        yield Goal(f"{name}: times the memory roofline", threads, row.times_roofline,
                   MAX_TIMES_ROOFLINE, at_most=True)  # fmt: skip


def _linear_bf16(measured: Measured, row: Row, threads: int) -> Iterator[Goal]:
    """Weights of four bits make few rows faster than those of 16, many rows not slower."""
    peer = measured.find("linear bf16", row.shape, "torch bf16", threads)
    if peer:
        name = " x ".join(map(str, row.shape))
        wanted = MIN_SPEEDUP_OF_ONE_ROW if row.m == 1 else MIN_SPEEDUP_OF_MANY_ROWS
        yield Goal(f"bf16 {name}: times faster than torch bf16", threads, peer.times_ours, wanted)


def _linear_mxfp8(measured: Measured, row: Row, threads: int) -> Iterator[Goal]:
    """Rounding activations to eight bits costs next to nothing, and beats float weights."""
    name = " x ".join(map(str, row.shape))
    peer = measured.find("linear mxfp8", row.shape, "torch bf16", threads)
    if peer:
        yield Goal(f"mxfp8 {name}: times faster than torch bf16", threads, peer.times_ours, 1.0)
    kept = measured.find("linear bf16", row.shape, OURS, threads)
    if kept:
        share = kept.time_us_median / row.time_us_median
        yield Goal(f"mxfp8 {name}: share of our bf16 rate", threads, share, MIN_SHARE_OF_KEPT)


def _wanted_of_four_bit(shape: tuple[int, int, int], peer: str) -> float:
    if shape == SMALL:
        return 1.5
    if peer == "MAX Q4_0" and shape in LARGE:
        return 2.0
    if peer == "MAX Q4_0" and shape in MEDIUM:
        return 1.5
    return 1.0


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
    """From the fewest to the most threads."""
    if len(measured.threads) < 2:
        return
    few, many = measured.threads[0], measured.threads[-1]

    def speedup(op: str, shape, system: str) -> float | None:
        before, after = (measured.find(op, shape, system, count) for count in (few, many))
        return before.time_us_median / after.time_us_median if before and after else None

    for op in OPS:
        for row in measured.ours(op, many):
            gain = speedup(op, row.shape, OURS)
            if gain is not None:
                name = " x ".join(str(size) for size in row.shape if size)
                yield Goal(f"{op} {name}: speed-up over {few} thread", many, gain, SAME)
    for shape in LARGE:
        ours, floats = speedup("linear", shape, OURS), speedup("linear", shape, "torch f32")
        if ours is not None and floats is not None:
            name = " x ".join(map(str, shape))
            yield Goal(f"{name}: speed-up over that of torch f32", many, ours / floats, SAME)
