"""Draws a profile: a picture of waves over cycles, and a trace for Perfetto.

    picture (PNG)      one row per wave, grouped by SIMD; colour = kind of instruction;
                       blank = the wave could not issue; one row of matrix-pipe use per SIMD
    trace (JSON)       Chrome trace events: a process per SIMD, a thread per wave, and a thread
                       for the matrix pipe. One cycle is shown as one nanosecond.

Open the JSON at ui.perfetto.dev or chrome://tracing. Both show the model, not a measurement.
"""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Patch

COLOURS = {
    "mfma": "#c0392b",
    "valu": "#2e86c1",
    "lds": "#27ae60",
    "load": "#8e44ad",
    "store": "#d35400",
    "atomic": "#e67e22",
    "smem": "#16a085",
    "salu": "#aab7b8",
    "branch": "#7f8c8d",
    "barrier": "#f4d03f",
    "wait": "#fad7a0",
    "nop": "#d5d8dc",
    "prio": "#aab7b8",
}
ISSUE_CYCLES = 4
CYCLES_PER_TS = 1000.0
"""A Chrome time stamp is a microsecond: a cycle shows as a nanosecond."""
LONG_KINDS = ("barrier", "wait", "nop")
"""Kinds that hold their wave for the whole span; others only for an issue slot."""


def _slot(span) -> float:
    """Returns how long an instruction holds its wave."""
    length = span.end - span.start
    return length if span.kind in LONG_KINDS else min(length, ISSUE_CYCLES)


def _pipe_rows(profile):
    """Returns each SIMD's matrix-pipe intervals."""
    rows = {}
    for span in profile.spans:
        if span.kind == "mfma":
            rows.setdefault(profile.simd_of[span.wave], []).append(span)
    return rows


def write_perfetto(profile, path) -> None:
    """Writes waves x instructions as Chrome trace events."""
    events = []
    for simd in sorted(set(profile.simd_of.values())):
        events.append(_name("process_name", simd, 0, f"SIMD {simd} (model)"))
        events.append(_name("thread_name", simd, 0, "matrix pipe"))
    tids = {wave: i + 1 for i, wave in enumerate(sorted(profile.simd_of))}
    for wave, simd in profile.simd_of.items():
        events.append(_name("thread_name", simd, tids[wave], f"wave {wave}"))
    for span in profile.spans:
        simd = profile.simd_of[span.wave]
        text = profile.texts[span.pc]
        args = {"text": text, "pc": span.pc, "done at cycle": span.end}
        events.append(_slice(simd, tids[span.wave], span, _slot(span), args))
        if span.kind == "mfma":
            events.append(_slice(simd, 0, span, span.end - span.start, args))
    about = {"kernel": profile.kernel, "note": "model; 1 ns = 1 cycle"}
    document = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}
    Path(path).write_text(json.dumps(document, separators=(",", ":")))


def _name(what, pid, tid, name):
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(pid, tid, span, length, args):
    name = args["text"].split()[0]
    return {
        "ph": "X", "pid": pid, "tid": tid, "name": name, "cat": span.kind, "args": args,
        "ts": span.start / CYCLES_PER_TS, "dur": length / CYCLES_PER_TS,
    }  # fmt: skip


def draw(profile, path, *, start: float = 0.0, end: float | None = None) -> None:
    """Writes a PNG of the waves between two cycles, by default of the whole first round."""
    end = profile.cycles if end is None else end
    if not 0 <= start < end:
        raise ValueError(f"expected 0 <= start < end, got start {start} and end {end}")
    waves = sorted(profile.simd_of, key=lambda wave: (profile.simd_of[wave], wave))
    pipes = _pipe_rows(profile)
    figure = Figure(figsize=(14, 1.6 + 0.32 * (len(waves) + len(pipes))))
    axes = figure.add_subplot()
    labels, kinds, row = [], set(), 0
    for simd in sorted(set(profile.simd_of.values())):
        for wave in (w for w in waves if profile.simd_of[w] == simd):
            visible = [s for s in profile.spans if s.wave == wave and s.end > start < end > s.start]
            for kind in {s.kind for s in visible}:
                bars = [(s.start, _slot(s)) for s in visible if s.kind == kind]
                axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=COLOURS[kind], linewidth=0)
                kinds.add(kind)
            labels.append(f"SIMD {simd}  wave {wave}")
            row += 1
        bars = [(s.start, s.end - s.start) for s in pipes.get(simd, ())]
        axes.broken_barh(bars, (row - 0.25, 0.5), facecolors="#641e16", linewidth=0)
        labels.append(f"SIMD {simd}  matrix pipe")
        row += 1
    axes.set_yticks(range(row), labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(start, end)
    axes.set_xlabel("cycles")
    axes.set_title(
        f"{profile.kernel}: model of one CU, MFMA utilisation {profile.mfma_utilisation:.1%}",
        fontsize=10,
    )
    legend = [Patch(color=COLOURS[kind], label=kind) for kind in COLOURS if kind in kinds]
    axes.legend(handles=legend, ncols=6, fontsize=7, loc="upper center",
                bbox_to_anchor=(0.5, -0.18 - 0.6 / row))  # fmt: skip
    figure.savefig(path, dpi=110, bbox_inches="tight")
