"""What tests of vLLM share: its environment, and tiny models as files, each made once."""

import pytest

from bench.serving.environment import python_with_vllm
from tests.serving.models import write_models
from tests.watchdog import BUILD_SECONDS, Limit


@pytest.fixture(scope="session")
def python():
    """Returns the interpreter that has vLLM."""
    with Limit.of(BUILD_SECONDS):
        return str(python_with_vllm())


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Returns where the models are."""
    folder = tmp_path_factory.mktemp("vllm")
    write_models(folder)
    return folder
