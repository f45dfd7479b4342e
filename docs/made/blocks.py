"""Pictures of a block and of its scale: all values come from the compiled `quantize`."""

from __future__ import annotations

import numpy as np
import torch

import mx_kernels as mx
from made.drawing import Figure, svg

BLOCK = 32
RULES = ("floor", "even", "ceil", "rceil")
BIAS = 127
"""Of a scale byte: 127 is a scale of one."""
POINTS = 1001
BLOCKS, ERROR_POINTS = 300, 140
"""Blocks whose errors are averaged, and magnitudes that they are scaled to."""


def block() -> str:
    """Draws 32 floats, what their codes stand for, and the 17 bytes that are stored."""
    x = torch.randn(1, BLOCK, generator=torch.Generator().manual_seed(5))
    q = mx.quantize(x)
    values, stored = x[0].numpy(), q.dequantize(torch.float32)[0].numpy()
    data, scale = q.codes[0].tolist(), q.scales[0, 0].item()

    figure = Figure(figsize=(9, 3.9))
    above, below = figure.subplots(2, 1, height_ratios=[3, 1])
    steps = sorted({sign * step for sign in (1, -1) for step in (0, 0.5, 1, 1.5, 2, 3, 4, 6)})
    for step in steps:
        above.axhline(step * 2.0 ** (scale - BIAS), color="#cfd8dc", linewidth=0.8, zorder=0)
    above.bar(range(BLOCK), stored, color="#90a4ae", width=0.8, label="what its code stands for")
    above.plot(range(BLOCK), values, "o", color="#bf360c", markersize=4, label="the float")
    above.set_xlim(-0.6, BLOCK - 0.4)
    above.set_xticks(range(BLOCK), range(BLOCK), fontsize=6)
    above.set_ylabel("value")
    above.legend(fontsize=7, loc="upper right", ncols=2)
    exponent = scale - BIAS
    above.set_title(
        f"32 neighbours along K; lines: the 15 values of E2M1 times the scale 2**{exponent}",
        fontsize=9,
    )
    below.set_xlim(-0.6, BLOCK - 0.4)
    below.set_ylim(0, 1)
    below.axis("off")
    for byte, pair in enumerate(data):
        box = {"boxstyle": "square,pad=0.3", "facecolor": "#eceff1", "edgecolor": "#607d8b"}
        below.text(2 * byte + 0.5, 0.7, f"{pair:02x}", ha="center", va="center", fontsize=8,
                   family="monospace", bbox=box)  # fmt: skip
    box = {"boxstyle": "square,pad=0.3", "facecolor": "#ffe0b2", "edgecolor": "#bf360c"}
    below.text(0.5, 0.15, f"{scale:02x}", ha="center", va="center", fontsize=8, bbox=box,
               family="monospace")  # fmt: skip
    below.text(1.6, 0.15, "scale byte (E8M0): the exponent + 127.   Above: 16 bytes of codes, two "
               "a byte, the low digit is the even k", va="center", fontsize=8)  # fmt: skip
    return svg(figure)


def exponents(rule: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns largest magnitudes, and the exponents of the scales of blocks that have them."""
    largest = torch.linspace(1, 8, POINTS)[:-1]
    x = torch.zeros(len(largest), BLOCK)
    x[:, 0] = largest
    q = mx.quantize(x, scale_rule=rule)
    return largest.numpy(), q.scales[:, 0].numpy().astype(int) - BIAS


def scale_rules() -> str:
    """Draws the exponent of the scale over the largest magnitude of a block, by rule."""
    figure = Figure(figsize=(9, 2.8))
    panel = figure.subplots()
    for index, rule in enumerate(RULES):
        largest, found = exponents(rule)
        panel.plot(largest, found + 0.06 * (1.5 - index), label=rule, linewidth=2)
    panel.set_yticks([-2, -1, 0, 1])
    panel.set_xlabel("largest magnitude of the block")
    panel.set_ylabel("exponent of the scale")
    panel.set_title("MXFP4; lines are drawn a little apart", fontsize=9)
    panel.legend(fontsize=8, ncols=4)
    return svg(figure)


def errors(rule: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns largest magnitudes, and the relative error of normal blocks scaled to have them."""
    blocks = torch.randn(BLOCKS, BLOCK, generator=torch.Generator().manual_seed(1))
    blocks /= blocks.abs().amax(1, keepdim=True)
    largest = torch.linspace(1, 8, ERROR_POINTS + 1)[:-1]
    x = largest[:, None, None] * blocks
    error = mx.quantize(x, scale_rule=rule).dequantize(torch.float32) - x
    squares = error.pow(2).sum((1, 2)) / x.pow(2).sum((1, 2))
    return largest.numpy(), squares.sqrt().numpy()


def block_error() -> str:
    """Draws the error of whole blocks over their largest magnitude, by rule."""
    figure = Figure(figsize=(9, 2.8))
    panel = figure.subplots()
    for rule, style in zip(RULES, ("-", "-", "--", ":"), strict=True):
        largest, found = errors(rule)
        panel.plot(largest, 100 * found, style, label=rule, linewidth=2)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("largest magnitude of the block")
    panel.set_ylabel("error of the block, %")
    panel.set_title(f"MXFP4, {BLOCKS} blocks of normal numbers, scaled", fontsize=9)
    panel.legend(fontsize=8, ncols=4, loc="lower right")
    return svg(figure)
