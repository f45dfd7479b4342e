"""Every text that is made while the site is built, by name, as Markdown."""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from examples.ladder.rungs import BY_NAME
from made import errors, layouts

ROOT = Path(__file__).parents[2]


def ladder_rows() -> list[dict[str, str]]:
    """Returns what the model said of the rungs."""
    with (ROOT / "examples/ladder/results.csv").open() as file:
        return list(csv.DictReader(file))


def _ladder_table(ladder: str) -> str:
    rows = [row for row in ladder_rows() if BY_NAME[row["rung"]].ladder == ladder]
    shapes = [" x ".join(row[name] for name in "mnk") for row in rows]
    is_one = len(set(shapes)) == 1
    lines = [
        f"| rung | what is new |{'' if is_one else ' M x N x K |'} us | matrix pipes busy | "
        "LDS conflicts | waves wait for |",
        f"|---|---|{'' if is_one else '---|'}---:|---:|---:|---|",
    ]
    for row, shape in zip(rows, shapes, strict=True):
        low, high = sorted((float(row["clock_us"]), float(row["latency_us"])))
        lines.append(
            f"| `{row['rung']}` | {BY_NAME[row['rung']].adds} |{'' if is_one else f' {shape} |'} "
            f"{low:.1f} .. {high:.1f} | "
            f"{float(row['mfma_utilisation']):.0%} | {float(row['lds_conflict_share']):.0%} | "
            f"{row['stalls']} |"
        )
    what = f"M x N x K = {shapes[0]}; " if is_one else ""
    origin = f"{what}*simulated*, never measured; commit {rows[0]['commit']}, "
    return "\n".join([*lines, "", f"{origin}{rows[0]['date']}."])


def ladder_rates(row: dict[str, str]) -> list[float]:
    """Returns the TFLOP/s of a rung in both readings of the model, the lower one first."""
    flops = 2e-6 * float(row["m"]) * float(row["n"]) * float(row["k"])
    return sorted(flops / float(row[reading]) for reading in ("clock_us", "latency_us"))


def ladder_ratios(row: dict[str, str]) -> tuple[float, float] | None:
    """Returns the least and the greatest ratio of modelled to published TFLOP/s, if published."""
    published = BY_NAME[row["rung"]].published
    if published is None:
        return None
    low, high = ladder_rates(row)
    return low / published[1], high / published[0]


def _between(ends: tuple[float, float] | list[float], form: str) -> str:
    """Writes a range in a format, or one number if both ends read the same."""
    return " .. ".join(dict.fromkeys(format(end, form) for end in ends))


def published_ladder(ladder: str, shape: str) -> str:
    """Returns a ladder of AMD's: TFLOP/s as published beside those of the model."""
    rows = [row for row in ladder_rows() if BY_NAME[row["rung"]].ladder == ladder]
    lines = [
        "| rung | what is new | TFLOP/s, published | modelled | ratio | matrix pipes busy | "
        "LDS conflicts | waves wait for |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        published, ratios = BY_NAME[row["rung"]].published, ladder_ratios(row)
        rates = ladder_rates(row)
        lines.append(
            f"| `{row['rung']}` | {BY_NAME[row['rung']].adds} | "
            f"{_between(published, 'g') if published else ''} | "
            f"{_between(rates, '.1f' if rates[0] < 100 else '.0f')} | "
            f"{_between(ratios, '.2f') if ratios else ''} | {float(row['mfma_utilisation']):.0%} | "
            f"{float(row['lds_conflict_share']):.0%} | {row['stalls']} |"
        )
    origin = (
        f"{shape}. Published: AMD, hardware (MI355X). Modelled: "
        f"*simulated*, never measured; commit {rows[0]['commit']}, {rows[0]['date']}."
    )
    return "\n".join([*lines, "", origin])


HOPPER_LADDER = {
    (4096, 8192, 8192): {
        "rs_bf16 64x128": "Weights are decoded to bf16 in registers, once for 64 rows of A.",
        "rs_bf16 128x128": "Once for 128 rows: half the decoding.",
        "rs_bf16 256x128": "Once for 256 rows, by a persistent kernel: the epilogue of a tile "
        "overlaps the loads of the next one.",
        "rs_e5m2 128x128 streamK": "Operands are E5M2 under a shared exponent, tensor cores twice "
        "as fast; every CTA has an equal share of K.",
        "rs_e5m2 256x128": "The same, once for 256 rows.",
        "ss_e5m2 128x128 prepared": "Weights are decoded once for all, to the workspace: TMA "
        "feeds both operands.",
    },
    (128, 8192, 8192): {
        "stream 64x64": "mma.sync on operands that stream through registers.",
        "stream 64x128": "128 columns a CTA: rows of A are read half as often.",
        "rs_bf16 128x128": "wgmma, warp-specialised: producers copy, consumers decode.",
        "rs_bf16 128x128 splitK2": "128 CTAs instead of 64, of 132 multiprocessors.",
        "rs_e5m2 128x128": "Operands are E5M2 under a shared exponent, without a split.",
        "rs_e5m2 128x128 splitK2": "Both: FP8 and two CTAs for each tile.",
    },
}
"""What each plan adds to the one before, by M x N x K."""


def hopper_ladder() -> str:
    """Returns the measured times of plans that differ in a setting each, and of cuBLAS."""
    with (ROOT / "bench/results/cuda_tune.csv").open() as file:
        rows = list(csv.DictReader(file))
    parts = []
    for shape, rungs in HOPPER_LADDER.items():
        us = {
            row["plan"]: float(row["us"])
            for row in rows
            if tuple(int(row[name]) for name in "mnk") == shape
        }
        lines = [
            f"## {' x '.join(map(str, shape))}",
            "",
            "| plan | what is new | us | TFLOP/s |",
            "|---|---|---:|---:|",
        ]
        operations = 2 * shape[0] * shape[1] * shape[2]
        for plan, adds in {**rungs, "cublas": "bf16 x bf16, for comparison."}.items():
            lines.append(
                f"| `{plan}` | {adds} | {us[plan]:.1f} | {operations / us[plan] / 1e6:.0f} |"
            )
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def hopper_plans() -> str:
    """Returns what the text of a plan says, from its module."""
    said = DOCSTRING.match((MOJO / "hopper/plan.mojo").read_text())[1].strip()
    return said.partition("\n\n")[2]


def max_graph_example() -> str:
    """Returns the function of the example that builds the graph."""
    source = (ROOT / "examples/max_graph.py").read_text()
    found = next(
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "build"
    )
    return f"```python\n{ast.get_source_segment(source, found)}\n```"


MOJO = ROOT / "mojo_kernels"
SHOWN = ("numbers", "layouts", "operands", "problem", "experts", "launch", "schedule")
"""What there is a reference for: what kernels and callers share."""
DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
DECLARED = re.compile(
    r"^(?:struct|trait|def) ([A-Za-z]\w*)(.*?):\n    \"\"\"(.*?)\"\"\"", re.DOTALL | re.MULTILINE
)


def mojo_map() -> str:
    """Returns the map of the Mojo package, as its own docstring draws it."""
    return DOCSTRING.match((MOJO / "__init__.mojo").read_text())[1].strip()


def mojo_reference() -> str:
    """Returns the docstrings of modules, and lines of their public structs and functions."""
    files = [
        path
        for name in SHOWN
        for path in (sorted((MOJO / name).glob("*.mojo")) or [MOJO / f"{name}.mojo"])
        if path.stem != "__init__"
    ]
    return "\n\n".join(_mojo_module(path) for path in files)


def _mojo_module(path: Path) -> str:
    source = path.read_text()
    module = path.relative_to(MOJO).with_suffix("").as_posix().replace("/", ".")
    lines = []
    for name, _, text in DECLARED.findall(source):
        first = " ".join(text.strip().split("\n\n")[0].split())
        lines.append(f"* `{name}`: {first}")
    said = DOCSTRING.match(source)[1].strip()
    return f"## {module}\n\n{said}\n\n" + "\n".join(lines)


def python_api() -> str:
    """Returns a line for each public function, to be filled from its docstring."""
    tree = ast.parse((ROOT / "python/mx_kernels/__init__.py").read_text())
    names = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
    )
    # A module of the same name would be taken for the function.
    modules = {path.stem for path in (ROOT / "python/mx_kernels").glob("*.py")}
    paths = (f"{name}.{name}" if name in modules else name for name in names)
    return "\n\n".join(f"::: mx_kernels.{path}" for path in paths)


TEXTS: dict[str, Callable[[], str]] = {
    "many_rows": partial(_ladder_table, "many_rows"),
    "few_rows": partial(_ladder_table, "few_rows"),
    "contest": partial(_ladder_table, "contest"),
    "fp8_ladder": partial(published_ladder, "fp8", "M = N = K = 4096, in the last row 8192"),
    "f16_ladder": partial(
        published_ladder, "f16", "M = N = 4096, K = 8192; in the last row 32 x 65536 x 8192"
    ),
    "bf8_ladder": partial(published_ladder, "bf8", "M = N = 4096, K = 16384"),
    "hopper_ladder": hopper_ladder,
    "hopper_plans": hopper_plans,
    "layouts": layouts.sections,
    "max_graph_example": max_graph_example,
    "mojo_map": mojo_map,
    "mojo_reference": mojo_reference,
    "python_api": python_api,
    **errors.TEXTS,
}
