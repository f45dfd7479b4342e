"""Who answers `explain` for a device: a question, and what extension modules say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mx_kernels._core import levels
from mx_kernels._core.facts import KEPT_FLOATS, Format, Layout, Mode, facts, unsupported
from mx_kernels._core.native import gpu_plans
from mx_kernels._core.products import question
from mx_kernels._core.protocol import ENCODED, KEPT
from mx_kernels.hints import DeviceName

_Launches = tuple[list[dict[str, Any]], int]
"""The columns of each `Launch`, and the bytes of their workspace."""


class Question(NamedTuple):
    """A product: its sizes, what its left side is, and the weights' format."""

    m: int
    n: int
    k: int
    left: Mode
    right: Format
    by_columns: bool

    def call(self, layout: Layout) -> tuple[int, ...]:
        """Returns what an extension module takes for it, with weights in a layout."""
        return question(self[:3], self.left, self.right, layout)

    def codes(self) -> tuple[int, int]:
        """Returns the positions of both formats."""
        return self.left.format, self.right.code


def _on_cpu(asked: Question) -> dict[str, Any]:
    """Every pair has kernels; the levels differ in their instructions."""
    row = facts().native.explain_cpu(asked.call(facts().layout_for("cpu")))
    return {**row, "level": levels.pick().name}


def _on_gfx950(asked: Question) -> dict[str, Any]:
    """The row of the dispatch table, which knows some pairs."""
    known, by_columns = gpu_plans(), int(asked.by_columns)
    pairs = known.column_pairs_on_gfx950() if by_columns else known.pairs_on_gfx950()
    _check_pair(asked, pairs)
    is_encoded = int(asked.left.kind == ENCODED)
    return dict(known.explain_gfx950((*asked[:3], *asked.codes(), is_encoded, by_columns)))


def _experts_on_gfx950(asked: Question, call: tuple[int, ...]) -> _Launches:
    """The launches of experts, of some pairs, and the bytes of their workspace."""
    _check_pair(asked, gpu_plans().expert_pairs_on_gfx950())
    return gpu_plans().explain_experts_gfx950(call)


def _check_pair(asked: Question, pairs: list[tuple[str, str]]) -> None:
    """Raises unless gfx950 has kernels for both formats."""
    left = list(facts().formats)[asked.left.format] if asked.left.kind != KEPT else KEPT_FLOATS
    if (left, asked.right.name) not in pairs:
        raise unsupported(left, asked.right.name, "gfx950", pairs)


def _on_cuda(asked: Question) -> dict[str, Any]:
    """Hopper's plan of the least cost, for preshuffled weights; or the portable kernel."""
    sizes = (asked.m, asked.n, asked.k)
    return dict(gpu_plans().explain_cuda((*sizes, asked.left.format, asked.right.code)))


def _experts_on_cuda(_: Question, call: tuple[int, ...]) -> _Launches:
    """Those of Hopper, for preshuffled weights of any format."""
    return gpu_plans().explain_experts_cuda(call)


DEVICES: dict[DeviceName, Callable[[Question], dict[str, Any]]] = {
    "cpu": _on_cpu,
    "gfx950": _on_gfx950,
    "cuda": _on_cuda,
}
"""Who answers for a device: returns the columns of an `Explanation` that the question leaves open,
of them always kernel, reason, tile_m and tile_n."""
EXPERTS_ON: dict[DeviceName, Callable[[Question, tuple[int, ...]], _Launches]] = {
    "gfx950": _experts_on_gfx950,
    "cuda": _experts_on_cuda,
}
"""Who answers for experts on a device; the second argument is what extension modules take."""
