"""Figures as SVG text, the same to the byte from build to build."""

from __future__ import annotations

import io

import matplotlib
from matplotlib.figure import Figure

__all__ = ["Figure", "svg"]

matplotlib.rcParams["svg.hashsalt"] = "mx_kernels"
matplotlib.rcParams["svg.fonttype"] = "none"
matplotlib.rcParams["font.family"] = "sans-serif"


def svg(figure: Figure) -> str:
    """Returns a figure as SVG."""
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    return text.getvalue()
