"""The command line: what is here, compiling ahead of time, which kernel, and checkpoints.

    python -m mx_kernels doctor              what this machine has, and what is wrong with it
    python -m mx_kernels build               compile the kernels now, for an image say
    python -m mx_kernels explain M N K       which kernel a product gets, and why
    python -m mx_kernels convert IN OUT      a checkpoint in another form, quantized on the way
    python -m mx_kernels examples            programs to read, copy and run

Exit code 2 means that the input was wrong; a sentence says what.
"""

from __future__ import annotations

import ast
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

import mx_kernels
from mx_kernels import checkpoints
from mx_kernels._core import builds as _builds
from mx_kernels._core import levels as _levels
from mx_kernels._core import native
from mx_kernels._core.cuda import architecture
from mx_kernels._core.facts import CDNA4, DEFAULT_FORMAT, DEFAULT_ROUNDING
from mx_kernels._core.native import BASE, Extension
from mx_kernels.checkpoints.configs import OURS
from mx_kernels.checkpoints.targets import TARGETS
from mx_kernels.explain import DEVICES, OPERATIONS

app: typer.Typer = typer.Typer(
    help="MX quantization and block-scaled matrix multiplication: builds, kernels, checkpoints.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
console: Console = Console(soft_wrap=True)
errors: Console = Console(stderr=True, soft_wrap=True)


@contextmanager
def _explained() -> Iterator[None]:
    """Turns a wrong input into one line and exit code 2."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        errors.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(2) from error


def _show_version(is_wanted: bool) -> None:
    """Prints the version and ends."""
    if is_wanted:
        console.print(f"mx_kernels {mx_kernels.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    """MX quantization and block-scaled matrix multiplication: builds, kernels, checkpoints."""


VARIABLES = (
    "MX_KERNELS_CACHE", "MX_KERNELS_CPU", "MX_KERNELS_NATIVE", "MX_KERNELS_PLANS",
    "MX_KERNELS_GPU", "MX_KERNELS_CUDA_PLAN", "MX_KERNELS_ACTIVATIONS", "MX_KERNELS_FORMAT",
    "MX_KERNELS_REST",
)  # fmt: skip
"""Environment variables of ours; docs/pages/install.md says what each names."""
LIBRARIES = ("torch", "numpy", "ml_dtypes", "transformers", "vllm", "gguf")
"""Whose versions a bug report needs, besides the compiler's."""


@app.command()
def doctor() -> None:
    """Print what a bug report needs; exit code 1 if something is wrong, which a line names."""
    wrong = list(_what_is_wrong())
    rows = {
        "mx_kernels": f"{mx_kernels.__version__}, {Path(mx_kernels.__file__).parent}",
        "Python": f"{platform.python_version()}, {platform.platform()}",
        "compiler": _compiler(),
        "C linker": next(filter(None, map(shutil.which, _builds.LINKERS)), "none"),
        "libraries": ", ".join(filter(None, map(_version_of, LIBRARIES))),
        "CPU": f"{_levels.model()}, {os.cpu_count()} threads",
        "CPU levels": ", ".join(one.name for one in _levels.here()),
        "GPUs": "; ".join(_gpus()) or "none that torch sees",
        "cache": _asked(_builds.cache_folder),
        "CPU kernels": _asked(_cpu_state),
    }
    rows |= {name: value for name, value in os.environ.items() if name.startswith("MX_KERNELS_")}
    for name, value in rows.items():
        console.print(f"{name:12} {value}", highlight=False, markup=False)
    for problem in wrong:
        errors.print(f"wrong: {problem}", style="red", markup=False)
    if wrong:
        raise typer.Exit(1)


def _asked(question: Callable[[], object]) -> object:
    """Returns an answer, or what it is that prevents one."""
    try:
        return question()
    except (ValueError, _builds.NativeBuildError) as error:
        return error


def _version_of(library: str) -> str:
    """Returns the name and version of what is installed."""
    with suppress(PackageNotFoundError):
        # Of torch, metadata leaves out which build it is.
        return f"{library} {getattr(sys.modules.get(library), '__version__', version(library))}"
    return ""


def _what_is_wrong() -> Iterator[str]:
    """Yields a sentence for each thing that would end a call."""
    for name in os.environ:
        if name.startswith("MX_KERNELS_") and name not in VARIABLES:
            yield f"{name} is set, which nothing reads; expected {', '.join(VARIABLES)}"
    try:
        _levels.pick()
        cache = _builds.cache_folder()
        extensions = [native.cpu_extension(), native.plans_extension()]
        given = [one for one in extensions if os.environ.get(one.variable)]
        for extension in given:
            path = os.environ[extension.variable]
            if why_not := native.objection(_builds.absolute(path, extension.variable), extension):
                yield f"{extension.variable}={path}: got {why_not}"
        if given == extensions:
            return
        if not _builds.has_compiler():
            wanted = [one.build() for one in extensions if one not in given]
            yield from (
                str(_builds.no_compiler(one.path())) for one in wanted if not one.is_whole()
            )
            return
        if not any(map(shutil.which, _builds.LINKERS)):
            yield f"no C linker on PATH; expected {' or '.join(_builds.LINKERS)}"
        there = next(path for path in (cache, *cache.parents) if path.exists())
        if not os.access(there, os.W_OK):
            yield f"cannot write {there}; set MX_KERNELS_CACHE to a folder that you can write"
    except (ValueError, _builds.NativeBuildError) as error:
        yield str(error)


def _compiler() -> str:
    """Returns the versions of the compiler, or that there is none."""
    if versions := _builds.has_compiler():
        return "Mojo {}, MAX {}".format(*versions)
    return "none: kernels have to be built elsewhere"


def _gpus() -> list[str]:
    """Returns the GPUs that torch sees, each with the architecture that kernels are built for."""
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        if torch.version.hip:
            kind = properties.gcnArchName.partition(":")[0]
        else:
            kind = architecture((properties.major, properties.minor))
        found.append(f"cuda:{index} {properties.name}, {kind}")
    return found


def _cpu_state() -> str:
    """Says where the CPU's module is, whole or its first part."""
    try:
        builds = [native.cpu_extension(defines=parts).build() for parts in ((), BASE)]
        whole, base = (build.is_there() for build in builds)
    except _builds.NativeBuildError as error:
        return str(error)
    if whole:
        return str(builds[0].path())
    rest = "in parts, as they are needed" if base else "not compiled yet"
    return f"{rest}; all at once: python -m mx_kernels build"


@app.command()
def build(
    level: Annotated[
        list[str] | None,
        typer.Option(help="A CPU level to compile for, also of other machines; can be repeated. "
                          "Default: this CPU's."),
    ] = None,
    arch: Annotated[
        list[str] | None,
        typer.Option(help="A GPU's architecture beside it: sm_90a, gfx950; can be repeated."),
    ] = None,
) -> None:  # fmt: skip
    """Compile kernels ahead of time, into the cache that MX_KERNELS_CACHE names.

    The folder that is printed last has Mojo's runtime: where the cache is copied to, neither
    compiler nor linker is needed.
    """
    with _explained():
        known = {one.name: one for one in (*_levels.LEVELS, _levels.NATIVE)}
        if unknown := [name for name in level or () if name not in known]:
            raise ValueError(f"--level: got {unknown[0]!r}, expected {' or '.join(known)}")
        levels = [known[name] for name in level or ()] or [_levels.pick()]
        paths = []
        for one in levels:
            wanted = [native.cpu_extension(one), native.plans_extension(one)]
            for name in arch or ():
                wanted += [replace(module, level=one) for module in _gpu_modules(name)]
            for extension in wanted:
                paths.append(native.find_or_build(extension=extension))
                console.print(paths[-1], highlight=False)
        console.print(native.keep_runtime(paths), highlight=False)


def _gpu_modules(name: str) -> list[Extension]:
    """Returns the modules of an architecture; those of CDNA4 are without products."""
    if name == CDNA4:
        return [native.hip_extension(name), native.hip_extension(name, native.FUSED)]
    if not name.startswith("sm_"):
        raise ValueError(f"--arch: got {name!r}, expected sm_90a or the like, or gfx950")
    return [native.gpu_extension(name)]


@app.command()
def explain(
    m: Annotated[int, typer.Argument(help="Rows of the activations.")],
    n: Annotated[int, typer.Argument(help="Rows of the weights.")],
    k: Annotated[int, typer.Argument(help="Elements of a row.")],
    *,
    device: Annotated[
        str, typer.Option(help=f"{', '.join(DEVICES)}; it need not be here.")
    ] = "cpu",
    op: Annotated[str, typer.Option(help=f"One of {', '.join(OPERATIONS)}.")] = "linear",
    activations: Annotated[
        str | None, typer.Option(help="A format, or bf16; default: the device's best.")
    ] = None,
    format: Annotated[str, typer.Option(help="Of the weights.")] = DEFAULT_FORMAT,
    experts: Annotated[int, typer.Option(help="Of grouped_linear and moe.")] = 0,
    slots: Annotated[int, typer.Option(help="Experts of a token, of moe.")] = 0,
) -> None:
    """Say which kernel computes [M, K] @ [N, K].T, how it cuts the work, and why."""
    with _explained():
        options = {"device": device, "activations": activations, "format": format}
        options["op"] = OPERATIONS.get(op, op)
        options |= {"experts": experts, "slots": slots}
        answer = mx_kernels.explain(m, n, k, **options)
    console.print(str(answer), highlight=False, markup=False)


@app.command()
def convert(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="A safetensors file, its index, or a folder.")
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that is new or empty.")],
    *,
    to: Annotated[str, typer.Option(help=f"The form to write: {', '.join(TARGETS)}.")] = OURS,
    format: Annotated[
        str | None,
        typer.Option(help=f"What floats become, default {DEFAULT_FORMAT}; and codes, if given."),
    ] = None,
    scale_rule: Annotated[
        str | None, typer.Option(
            "--scale-rule", "--rounding",
            help=f"How scales are chosen; default {DEFAULT_ROUNDING}.")
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(help="A pattern of the names to quantize, instead of linear weights but for "
                          "embeddings, norms, routers, heads and towers; can be repeated."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="A pattern of names to leave as they are; can be repeated."),
    ] = None,
    k_axis: Annotated[
        int | None,
        typer.Option(help="-1 if stacks of matrices are [.., N, K], -2 if they are [.., K, N], "
                          "where the config does not tell."),
    ] = None,
    max_shard_bytes: Annotated[int | None, typer.Option(help="Of a file; default 5 GB.")] = None,
) -> None:  # fmt: skip
    """Write a checkpoint in another form; one of floats is quantized on the way."""
    options = {"to": to, "format": format, "scale_rule": scale_rule, "k_axis": k_axis}
    patterns = {"include": include or (), "exclude": exclude or ()}
    with _explained():
        done = checkpoints.convert(
            source, target, **options, **patterns, max_shard_bytes=max_shard_bytes
        )
    console.print(
        f"{target}: {len(done.quantized)} quantized, {len(done.rewritten)} were MX, "
        f"{len(done.kept)} as they were; {done.bytes_before / 1e6:.1f} MB became "
        f"{done.bytes_after / 1e6:.1f} MB",
        highlight=False,
        markup=False,
    )
    if done.errors:
        worst = max(done.errors, key=done.errors.get)
        said = f"relative error by another format: {done.errors[worst]:.2g} at most, of {worst}"
        console.print(said, highlight=False, markup=False)
    if done.dequantized:
        names = ", ".join(done.dequantized)
        console.print(f"floats, by their K: {names}", highlight=False, markup=False)
    if done.left_out:
        console.print(f"left out: {', '.join(done.left_out)}", highlight=False, markup=False)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def examples(
    rest: typer.Context,
    name: Annotated[
        str, typer.Argument(help="One to run, with the arguments that follow. Default: list all.")
    ] = "",
    *,
    copy: Annotated[
        Path | None, typer.Option(help="A new folder to copy it to instead, or all of them.")
    ] = None,
) -> None:
    """List the example programs, run one, or copy them to read and change."""
    with _explained():
        found = {path.stem: path for path in sorted(_examples_folder().glob("*.py"))}
        if name and name not in found:
            raise ValueError(f"NAME: got {name!r}, expected {', '.join(found)}")
        if copy:
            copy.mkdir(parents=True)
            wanted = _examples_folder().glob(f"{name or '*'}.*")
            for path in (one for one in wanted if one.suffix in SOURCES):
                console.print(shutil.copy(path, copy), highlight=False)
            return
    if name:
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
        is_of_ranks = "\n    torchrun " in found[name].read_text(encoding="utf-8")
        command = [sys.executable, *(launcher if is_of_ranks else ()), str(found[name]), *rest.args]
        raise typer.Exit(subprocess.run(command, check=False).returncode)
    for stem, path in found.items():
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        console.print(f"{stem:20} {said.splitlines()[0]}", highlight=False, markup=False)
    last = f"\nin {_examples_folder()}; a NAME runs one, --copy FOLDER copies, --help says more"
    console.print(last, highlight=False, markup=False)


SOURCES = (".py", ".mojo", ".hip", ".s")
"""What examples consist of."""


def _examples_folder() -> Path:
    """Returns where the examples are: inside the wheel, or beside `python/`."""
    package = Path(mx_kernels.__file__).parent
    folders = package / "examples", package.parents[1] / "examples"
    for folder in folders:
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"no examples in {' or '.join(map(str, folders))}; reinstall mx_kernels"
    )
