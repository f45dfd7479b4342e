"""Which kernel a product gets, and why: what the dispatch decides, asked without a launch.

    >>> print(mx_kernels.explain(16, 2112, 7168, device="gfx950"))

The answer comes from the tables that the kernels' own dispatch reads. It needs no such device.
One function a device asks them: `DEVICES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mx_kernels import _levels
from mx_kernels._calls import question
from mx_kernels._checks import check_mode, format_named
from mx_kernels._facts import (
    DEFAULT_FORMAT,
    DEFAULT_ROUNDING,
    ENCODED,
    KEPT,
    KEPT_FLOATS,
    Format,
    Layout,
    Mode,
    facts,
    unsupported,
)

OPS = ("linear", "matmul")
MAX_SIZE = 2**31 - 1


@dataclass(frozen=True)
class Explanation:
    """The kernel of `linear` or `matmul` for one shape."""

    device: str
    op: str
    shape: tuple[int, int, int]
    """M, N, K."""
    activations: str
    """What the left side is multiplied as: a format or "bf16"."""
    format: str
    """The format of the weights."""
    kernel: str
    """The source file, within the Mojo package."""
    reason: str
    tile: tuple[int, int]
    """Rows and columns of C that are computed together: by a workgroup, or by a CPU core."""
    level: str = ""
    """The CPU's instruction level."""
    row: int = 0
    """The row of the dispatch table."""
    cut: str = ""
    """What the row launches: prefill<rows>, middle<rows>x<columns>, or m<tiles of rows>n<of
    columns>w<waves> and, where there is more than one, s<splits of K>, k<tiles of a chunk>,
    d<chunks in flight>, h<waves that share activations>; `u` if all chunks are in flight."""
    chunk_k: int = 0
    """Elements along K of a step."""
    waves: int = 0
    """Waves of a workgroup. Of a decode kernel they share K, of a prefill kernel the tile."""
    sharers: int = 1
    """Waves of a decode kernel with the same part of K, which share the columns."""
    depth: int = 0
    """Steps along K that a wave of a decode kernel has in flight."""
    splits: int = 1
    """Workgroups that share a tile of C, each with a part of K."""
    k_tail: bool = False
    """Whether the kernel is the one that can end within a step."""
    grid: tuple[int, int, int] = (0, 0, 0)
    """Workgroups along N, M and K; where one line counts all tiles, their number comes first."""
    threads: int = 0
    """Threads of a workgroup."""
    chunks_per_wave: int = 0
    """Steps of a wave of a decode kernel."""
    counter_bytes: int = 0
    """Bytes of the workspace that are zero before and after a launch."""
    workspace_bytes: int = 0

    def __str__(self) -> str:
        """Returns the decision in words."""
        size = " x ".join(map(str, self.shape))
        formats = f"{self.activations} x {self.format}"
        text = f"{size} of {formats} on {self.device}: {self.kernel}, {self.reason}; tiles of "
        text += f"{self.tile[0]} x {self.tile[1]}"
        if self.level:
            return f"{text}, instruction level {self.level}"
        if self.chunks_per_wave:
            text += f", {self.waves // self.sharers} x {self.sharers} waves along K and columns"
            text += f", {self.depth} steps of {self.chunk_k} in flight"
            text += f", K split {self.splits} ways"
        elif self.chunk_k:
            text += f", steps of {self.chunk_k}"
        elif self.splits > 1:
            text += f", K split {self.splits} ways"
        grid = " x ".join(map(str, self.grid))
        return f"{text}, {grid} workgroups of {self.threads} threads"


def explain(
    m: int,
    n: int,
    k: int,
    *,
    device: str = "cpu",
    op: str = "linear",
    activations: str = DEFAULT_FORMAT,
    format: str = DEFAULT_FORMAT,
) -> Explanation:
    """Returns which kernel computes [m, k] @ [n, k].T, how it cuts the work, and why.

    Args:
        m: rows of the activations.
        n: rows of the weights.
        k: elements of a row.
        device: "cpu", "gfx950", or "cuda" for a Hopper GPU; it need not be here.
        op: "linear", whose activations are floats, or "matmul", whose are encoded.
        activations: what activations are multiplied as; of "matmul", their format.
        format: the weights' format.

    Raises:
        TypeError: if a size is no integer.
        ValueError: if a size is not possible, the device has no kernels to choose from or none
            for the formats, or a name is unknown.
    """
    for name, size in (("m", m), ("n", n), ("k", k)):
        if not isinstance(size, int):
            raise TypeError(f"{name}: got {type(size).__name__}, expected int")
        if not 1 <= size <= MAX_SIZE:
            raise ValueError(f"{name}: got {size}, expected a number from 1 to {MAX_SIZE}")
    for name, value, known in (("device", device, DEVICES), ("op", op, OPS)):
        if value not in known:
            raise ValueError(f"{name}: got {value!r}, expected {' or '.join(map(repr, known))}")
    left, right = check_mode(activations, DEFAULT_ROUNDING), format_named(format)
    if op == "matmul":
        left = Mode(ENCODED, format_named(activations).code, left.rounding)
    block = right.k_multiple
    if k % block:
        raise ValueError(f"k: got {k}, expected a multiple of {block}")
    row = DEVICES[device](Question(m, n, k, left, right))
    tile = row.pop("tile_m"), row.pop("tile_n")
    question = {"device": device, "op": op, "activations": activations, "format": format}
    return Explanation(**question, shape=(m, n, k), tile=tile, **row)


class Question(NamedTuple):
    """A product: its sizes, what its left side is, and the weights' format."""

    m: int
    n: int
    k: int
    left: Mode
    right: Format

    def call(self, layout: Layout) -> tuple[int, ...]:
        """Returns what an extension module takes for it, with weights in a layout."""
        return question(self[:3], self.left, self.right, layout)


def _on_cpu(asked: Question) -> dict:
    """Every pair has kernels; the levels differ in their instructions."""
    row = facts().native.explain_cpu(asked.call(facts().layout_for("cpu")))
    return {**row, "level": _levels.pick().name}


def _on_gfx950(asked: Question) -> dict:
    """The row of the dispatch table, which knows some pairs."""
    native, kind, formats = facts().native, asked.left.kind, list(facts().formats)
    left = KEPT_FLOATS if kind == KEPT else formats[asked.left.format]
    pairs = native.pairs_on_gfx950()
    if (left, asked.right.name) not in pairs:
        raise unsupported(left, asked.right.name, "gfx950", pairs)
    sizes, codes = (asked.m, asked.n, asked.k), (asked.left.format, asked.right.code)
    return dict(native.explain_gfx950((*sizes, *codes, int(kind == ENCODED))))


def _on_cuda(asked: Question) -> dict:
    """Hopper's plan of the least cost, for preshuffled weights; or the portable kernel."""
    sizes = (asked.m, asked.n, asked.k)
    return dict(facts().native.explain_cuda((*sizes, asked.left.format, asked.right.code)))


DEVICES: dict[str, Callable[[Question], dict]] = {
    "cpu": _on_cpu,
    "gfx950": _on_gfx950,
    "cuda": _on_cuda,
}
"""Who answers for a device: returns the columns of an `Explanation` that the question leaves open,
of them always kernel, reason, tile_m and tile_n."""
