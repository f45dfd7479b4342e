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


def quantized(rule: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns magnitudes, the scale's exponent, and what becomes of the magnitude, by a rule."""
    largest = torch.linspace(1, 8, POINTS)[:-1]
    x = torch.zeros(len(largest), BLOCK)
    x[:, 0] = largest
    q = mx.quantize(x, rounding=rule)
    exponents = q.scales[:, 0].numpy().astype(int) - BIAS
    return largest.numpy(), exponents, q.dequantize(torch.float32)[:, 0].numpy()


def scale_rules() -> str:
    """Draws the exponent of the scale over the largest magnitude of a block, by rule."""
    figure = Figure(figsize=(9, 2.8))
    panel = figure.subplots()
    for index, rule in enumerate(RULES):
        largest, exponents, _ = quantized(rule)
        panel.plot(largest, exponents + 0.06 * (1.5 - index), label=rule, linewidth=2)
    panel.set_yticks([-2, -1, 0, 1])
    panel.set_xlabel("largest magnitude of the block")
    panel.set_ylabel("exponent of the scale")
    panel.set_title("MXFP4; lines are drawn a little apart", fontsize=9)
    panel.legend(fontsize=8, ncols=4)
    return svg(figure)


def largest_element() -> str:
    """Draws what becomes of the largest magnitude, in parts of it, by rule."""
    figure = Figure(figsize=(9, 2.8))
    panel = figure.subplots()
    for rule in RULES:
        largest, _, became = quantized(rule)
        panel.plot(largest, became / largest, label=rule, linewidth=1.5)
    panel.axhline(1, color="black", linewidth=0.8)
    panel.set_xlabel("largest magnitude of the block")
    panel.set_ylabel("its code's value / it")
    panel.set_title("MXFP4: below 1 the largest element is cut off or rounded down", fontsize=9)
    panel.legend(fontsize=8, ncols=4)
    return svg(figure)
