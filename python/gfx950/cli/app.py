"""Runs, checks and profiles compiled gfx950 kernels from the command line, on a CPU.

    python -m gfx950 run     KERNEL ...   execute; show what each buffer became
    python -m gfx950 check   KERNEL ...   prove waits, barriers, wait states, what is shared
    python -m gfx950 profile KERNEL ...   where the cycles go, by a timing model
    python -m gfx950 parameters           what that model assumes

KERNEL is assembly text, as LLVM prints it, or a code object for gfx950.
The launch is given by options or by a JSON file; launch_text.py describes both. Exit code 1
means that `check` found a hazard, 2 that the input was wrong.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from gfx950.cli.launch_text import FILLS, Launch, parse_args, parse_extent, read_launch
from gfx950.cli.report import print_parameters, print_profile
from gfx950.isa.asm import Kernel
from gfx950.isa.disassembly import load
from gfx950.machine.execute import STEPS, SimulationError
from gfx950.machine.launch import arrays, not_given
from gfx950.machine.run import run as execute
from gfx950.timing.model import profile as time_kernel
from gfx950.timing.parameters import Machine

app = typer.Typer(
    help="Runs, checks and profiles compiled CDNA4 (gfx950) kernels on a CPU.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)

GRID, BLOCK = "1", "64"

KernelFile = Annotated[
    Path,
    typer.Argument(
        exists=True, dir_okay=False, help="A code object, or assembly text as LLVM prints it."
    ),
]
LaunchFile = Annotated[
    Path | None,
    typer.Option("--launch", exists=True, dir_okay=False,
                 help='JSON with "grid", "block" and "args", instead of the next three options.'),
]  # fmt: skip
Grid = Annotated[str, typer.Option(help="Workgroups, such as 8 or 4,2,1.")]
Block = Annotated[str, typer.Option(help="Threads of a workgroup, such as 256.")]
Arguments = Annotated[
    list[str] | None,
    typer.Option("--arg", metavar="ARG", show_default=False,
                 help="A kernel argument, in order or as NAME=ARG: buf:SIZE[:FILL], i32:N, "
                      "u32:N, i64:N, u64:N, f32:X or f64:X; the members of a struct are joined "
                      f"by +. SIZE in bytes, 64K and 2M work. FILL is {FILLS}."),
]  # fmt: skip
Steps = Annotated[
    int, typer.Option(help="Instructions that a wave may execute: a loop without end ends there.")
]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="How long an execution of the launch may take; `check` "
                                         "and `profile` may execute it twice."),
]  # fmt: skip
Symbol = Annotated[
    str | None, typer.Option("--kernel", help="Which kernel, if the text contains several.")
]


@contextmanager
def _explained():
    """Turns a wrong input into one line and exit code 2."""
    try:
        yield
    except MemoryError as error:
        _say(f"error: not enough memory: {error}", "red")
        raise typer.Exit(2) from error
    except (ValueError, OSError, SimulationError) as error:
        _say(f"error: {error}", "red")
        raise typer.Exit(2) from error


def _say(sentence: str, style: str) -> None:
    """Prints a sentence as one line, however long."""
    errors.print(" ".join(sentence.split()), style=style, markup=False, soft_wrap=True)


def _read(
    kernel: KernelFile,
    *,
    launch: LaunchFile = None,
    grid: Grid = GRID,
    block: Block = BLOCK,
    arg: Arguments = None,
    symbol: Symbol = None,
    steps: Steps = STEPS,
    timeout: Timeout = None,
) -> tuple[Kernel, Launch]:
    """Reads what every command takes: a kernel and its launch."""
    loaded = load(kernel, symbol)
    if launch is not None:
        if arg or (grid, block) != (GRID, BLOCK):
            raise ValueError("got --launch and --grid, --block or --arg: expected the file alone")
        start = read_launch(launch)
    else:
        start = Launch(
            parse_extent(grid, "--grid"), parse_extent(block, "--block"), parse_args(arg or [])
        )
    start.steps, start.timeout = steps, timeout
    if missing := not_given(loaded, start.args):
        _say(f"warning: {missing} read as zero", "yellow")
    return loaded, start


def _command(function: Callable) -> Callable:
    """Registers a command: it gets what `_read` returns, and options of its own."""
    shared = inspect.signature(_read, eval_str=True).parameters
    every = inspect.signature(function, eval_str=True).parameters.values()
    own = [parameter for parameter in every if parameter.kind == parameter.KEYWORD_ONLY]

    def command(**given):
        with _explained():
            function(*_read(**{name: given.pop(name) for name in shared}), **given)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature([*shared.values(), *own])
    command.__annotations__ = {p.name: p.annotation for p in (*shared.values(), *own)}
    command.__module__ = __name__
    app.command()(command)
    return function


def _buffer_table(before, after) -> Table:
    table = Table(title="Buffers", title_justify="left", box=None)
    for column in ("buffer", "bytes", "changed", "crc32 after"):
        table.add_column(column, justify="right")
    for index, (old, new) in enumerate(zip(arrays(before), arrays(after), strict=True)):
        changed = int(np.count_nonzero(old != new))
        table.add_row(str(index), str(old.size), str(changed), f"{zlib.crc32(new):08x}")
    return table


@_command
def run(
    kernel: Kernel,
    start: Launch,
    *,
    dump: Annotated[
        list[str] | None,
        typer.Option(metavar="INDEX=PATH", help="Write buffer INDEX to a file afterwards."),
    ] = None,
):
    """Executes a kernel and shows what it did to its buffers."""
    count = len(list(arrays(start.args)))
    dumps = [_dump(item, count) for item in dump or []]
    before = deepcopy(start.args)
    result = execute(
        kernel, start.grid, start.block, start.args, steps=start.steps, timeout=start.timeout
    )
    console.print(_buffer_table(before, start.args))
    if all(map(np.array_equal, arrays(before), arrays(start.args))):
        console.print("no buffer changed: are grid, sizes and pointers what the kernel expects?",
                      style="yellow")  # fmt: skip
    if result.hazards:
        console.print(f"{len(result.hazards)} hazards; `check` names them", style="red")
    for index, path in dumps:
        list(arrays(start.args))[index].tofile(path)


def _dump(item: str, count: int) -> tuple[int, str]:
    index, _, path = item.partition("=")
    if not (path and index.isdecimal() and int(index) < count):
        raise ValueError(f"--dump: got {item!r}, expected INDEX=PATH with an INDEX below {count}")
    return int(index), path


@_command
def check(kernel: Kernel, start: Launch):
    """Looks for missing waits, barrier races and missing wait states.

    Runs the launch twice: with memory that answers at once, and with memory that answers as
    late as the waits in the code allow. Exit code 1 if anything was found.
    """
    found, doubtful, outputs = {}, {}, []
    for mode, late in (("at once", False), ("as late as legal", True)):
        lines, warnings, args = _findings(kernel, start, late)
        found |= dict.fromkeys(lines, mode)
        for warning in warnings:
            doubtful.setdefault(warning.doubt, {})[warning.text, warning.line] = warning
        outputs.append(arrays(args))
    if not found:
        pairs = enumerate(zip(*outputs, strict=True))
        differing = (i for i, pair in pairs if not np.array_equal(*pair))
        found = {f"buffer {i} differs between the two memory orders": mode for i in differing}
    for warnings in doubtful.values():
        first = next(iter(warnings.values()))
        line = f"warning, places: {len(warnings)}, first {first}"
        console.print(line, style="yellow", markup=False)
    for line, mode in found.items():
        console.print(f"{line}  [memory answers {mode}]", style="red", markup=False)
    if found:
        raise typer.Exit(1)
    console.print("no hazard found in either memory order")


def _findings(kernel, start: Launch, late: bool):
    """Runs a launch; returns what is wrong, as lines, what is doubtful, and the arguments."""
    args = deepcopy(start.args)
    try:
        result = execute(
            kernel, start.grid, start.block, args, late=late, steps=start.steps,
            timeout=start.timeout,
        )  # fmt: skip
    except SimulationError as error:
        return [*map(str, error.hazards), str(error)], [], args
    return list(map(str, result.hazards)), result.warnings, args


def _machine(settings: list[str]) -> Machine:
    types = {f.name: type(f.default) for f in fields(Machine)}
    changes = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in types:
            raise ValueError(f"no parameter {name!r}; `python -m gfx950 parameters` lists them")
        if name in changes:
            raise ValueError(f"--set {name}: got it more than once")
        try:
            changes[name] = types[name](value)
        except ValueError:
            raise ValueError(f"--set {name}: got {value!r}, expected a number") from None
    return replace(Machine(), **changes)


@_command
def profile(
    kernel: Kernel,
    start: Launch,
    *,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a parameter of the model."),
    ] = None,
    warm: Annotated[
        bool, typer.Option(help="Inputs are in the Infinity Cache instead of HBM.")
    ] = False,
    whole_grid: Annotated[
        bool, typer.Option(help="Execute every workgroup: exact cache sharing, slower.")
    ] = False,
    whole_round: Annotated[
        bool, typer.Option(help="Execute a round of the chip: exact cache sharing in it.")
    ] = False,
    picture: Annotated[Path | None, typer.Option(help="Draw the timeline as PNG.")] = None,
    cycles: Annotated[
        str | None, typer.Option(metavar="FROM:TO", help="Part of the timeline to draw.")
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write a Chrome/Perfetto trace of waves x instructions.")
    ] = None,
):
    """Estimates time, utilisation, stalls, LDS conflicts and bytes, by a model."""
    window = _window(cycles)
    result = time_kernel(
        kernel, start.grid, start.block, start.args, machine=_machine(setting or []), warm=warm,
        whole_grid=whole_grid, whole_round=whole_round, with_variants=True, steps=start.steps,
        timeout=start.timeout,
    )  # fmt: skip
    print_profile(result, console)
    if picture:
        from gfx950.timing.timeline import draw  # noqa: PLC0415 (matplotlib loads slowly)

        first, last = window or (0.0, result.cycles)
        draw(result, picture, start=first, end=last)
        console.print(f"timeline: {picture}")
    if perfetto:
        from gfx950.timing.timeline import write_perfetto  # noqa: PLC0415

        write_perfetto(result, perfetto)
        console.print(f"trace for ui.perfetto.dev: {perfetto}")


def _window(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        first, last = map(float, text.split(":"))
    except ValueError:
        first = last = 0.0
    if not 0 <= first < last < float("inf"):
        raise ValueError(f"--cycles: got {text!r}, expected FROM:TO as in 0:2000")
    return first, last


@app.command()
def parameters():
    """Prints what the timing model assumes, with range and source."""
    print_parameters(Machine(), console)
