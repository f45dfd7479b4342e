"""Pictures of every layout, from the offsets that are compiled from `layouts.mojo`.

An operand whose bytes say where they come from is moved to the layout by the compiled kernel,
and read back: once its bytes are their rows, once their places in the row.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.patches import Rectangle

import mx_kernels as mx
from made.drawing import Figure, svg
from mx_kernels._core.facts import facts

SOURCE = Path(__file__).parents[2] / "mojo_kernels" / "layouts.mojo"
ROWS, K = 64, 512
ROW_BYTES, BLOCKS = K // 2, K // 32
RUN_BYTES = 4
"""Bytes of a row that every layout keeps together: a cell of the picture."""
PARTS = ("codes", "scales")
LINES, CELLS = 16, 16
"""Cells of a picture: those at the beginning of the memory."""


@cache
def names() -> tuple[str, ...]:
    """Returns the layouts that are compiled."""
    return tuple(row["name"] for row in facts().native.tables()["layouts"])


def _device(name: str) -> str:
    rows = {row["name"]: row["device"] for row in facts().native.tables()["layouts"]}
    return rows[name]


def stored(name: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows and the places in them of the bytes in memory, in their order.

    Args:
        name: of a layout.
        part: `codes` or `scales`.
    """
    row, byte = np.meshgrid(np.arange(ROWS), np.arange(ROW_BYTES), indexing="ij")
    found = []
    for label in (row, byte):
        codes = torch.from_numpy(label.astype(np.uint8))
        scales = codes[:, :BLOCKS].contiguous()
        q = mx.MXTensor(codes, scales)
        if device := _device(name):
            q = q.preshuffle(device=device)
        assert q.layout == name
        found.append(getattr(q, part).numpy().ravel())
    return found[0], found[1]


def draw(name: str, part: str) -> str:
    """Draws the beginning of the memory: a cell for four bytes of codes, or for a scale."""
    rows, places = stored(name, part)
    step = RUN_BYTES if part == "codes" else 1
    count = LINES * CELLS
    rows, places = (values[: count * step : step] for values in (rows, places))
    colours = colormaps["viridis"].resampled(32)

    figure = Figure(figsize=(9, 4.4))
    panel = figure.subplots()
    for cell, (row, place) in enumerate(zip(rows, places, strict=True)):
        line, column = divmod(cell, CELLS)
        colour = colours(row % 32)
        panel.add_patch(
            Rectangle((column, line), 1, 1, facecolor=colour, edgecolor="white", linewidth=0.5)
        )
        ink = "white" if np.dot(colour[:3], (0.3, 0.6, 0.1)) < 0.55 else "black"
        panel.text(column + 0.5, line + 0.5, f"{row}:{place}", ha="center", va="center",
                   fontsize=6.5, color=ink)  # fmt: skip
    panel.set_xlim(0, CELLS)
    panel.set_ylim(LINES, 0)
    offsets = [line * CELLS * step for line in range(LINES)]
    panel.set_yticks([line + 0.5 for line in range(LINES)], offsets, fontsize=7)
    panel.set_xticks([cell + 0.5 for cell in range(CELLS)],
                     [f"+{cell * step}" for cell in range(CELLS)], fontsize=7)  # fmt: skip
    panel.xaxis.tick_top()
    panel.tick_params(length=0)
    panel.set_ylabel("offset in memory, bytes")
    what = "row : first of four bytes" if part == "codes" else "row : block"
    panel.set_title(
        f"{name}: {part} of an operand [{ROWS}, {K}], MXFP4.  A cell is {what}", fontsize=9
    )
    return svg(figure)


def sections() -> str:
    """Returns a section for each layout: what its source says, and both pictures."""
    source = SOURCE.read_text()
    parts = []
    for name in names():
        pattern = (
            r'struct \w+\(OperandLayout\):\n    """((?:(?!""").)*)"""(?:(?!\nstruct ).)*?NAME: '
            rf'StaticString = "{name}"'
        )
        said = re.search(pattern, source, re.DOTALL)[1]
        text = re.sub("^    ", "", said.strip(), flags=re.MULTILINE)
        device = (
            f"`preshuffle(device={_device(name)!r})`" if _device(name) else "What `quantize` gives"
        )
        parts += [f"## {name}", f"{device}.", text]
        parts += [f"![{name}, {part}](../pictures/{name}-{part}.svg)" for part in PARTS]
    return "\n\n".join(parts)
