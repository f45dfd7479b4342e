"""The plugin without vLLM is announced and imports nothing; MAX's models without its serving."""

import importlib
import subprocess
import sys
from pathlib import Path

import tomllib

from bench.serving.environment import BROKEN, PACKAGES, toolchain

ROOT = Path(__file__).resolve().parents[2]


def test_vllm_finds_the_plugin_by_its_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entry = project["entry-points"]["vllm.general_plugins"]["mx_kernels"]
    module, _, name = entry.partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_importing_the_plugin_imports_neither_vllm_nor_our_kernels_for_it():
    code = (
        "import sys, mx_kernels.integrations.vllm; print([m for m in sys.modules if 'vllm' in m])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "['mx_kernels.integrations.vllm']"


def test_without_maxs_serving_its_models_say_how_to_get_it():
    code = (
        "import sys; sys.modules['max.pipelines'] = None; import mx_kernels.integrations\n"
        "assert not {'max.nn', 'max.engine', 'max.serve'} & sys.modules.keys()\n"
        "try: import mx_kernels.max_pipelines\n"
        "except ImportError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "expected MAX's serving" in said.stdout and "mx_kernels[max-serve]" in said.stdout


def test_the_guide_installs_what_the_tests_of_vllm_use():
    guide = (ROOT / "docs/pages/guide/vllm.md").read_text()
    assert all(pin in guide for pin in (*PACKAGES, *toolchain()))
    assert f"uninstall -y {' '.join(BROKEN)}" in guide
