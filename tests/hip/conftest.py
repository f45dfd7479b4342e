"""The stand-in for HIP's runtime: one a process, as `_core.hip` finds the one that is loaded."""

import pytest

from tests.hip import support


@pytest.fixture(scope="session")
def runtime(tmp_path_factory):
    return support.build_runtime(tmp_path_factory.mktemp("hip"))


@pytest.fixture
def gpu(runtime, monkeypatch):
    stand_in = support.StandIn()
    stand_in.install(runtime, monkeypatch)
    yield stand_in
    assert not stand_in.failures, stand_in.failures
