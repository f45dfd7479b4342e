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


def test_plugins_import_nothing_of_theirs_and_maxs_models_say_how_to_get_its_serving():
    code = (
        "import sys; sys.modules['max.pipelines'] = None; import mx_kernels.integrations.vllm\n"
        "print([m for m in sys.modules if 'vllm' in m])\n"
        "assert not {'max.nn', 'max.engine', 'max.serve'} & sys.modules.keys()\n"
        "try: import mx_kernels.max_pipelines\n"
        "except ImportError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules, error = said.stdout.splitlines()
    assert modules == "['mx_kernels.integrations.vllm']"
    assert "expected MAX's serving" in error and "mx_kernels[max-serve]" in error


def test_the_guide_installs_what_the_tests_of_vllm_use():
    guide = (ROOT / "docs/pages/guide/vllm.md").read_text()
    assert all(pin in guide for pin in (*PACKAGES, *toolchain()))
    assert f"uninstall -y {' '.join(BROKEN)}" in guide
