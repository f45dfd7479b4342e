"""What every test sees: devices, a seeded generator, and torch's modes put back afterwards.

A test that uses `device` runs on the CPU and, where there is one, on a CUDA device: what it
makes without naming a device lies there. Claims about the CPU alone are marked `cpu_only`.
"""

import contextlib
import sys

import numpy as np
import pytest
import torch

from mx_kernels._cuda import CUDA, PORTABLE
from tests import artefacts

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def pytest_addoption(parser):
    parser.addoption(
        "--portable",
        action="store_true",
        help="on a CUDA device, leave products to the portable kernels",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "cpu_only: a claim about the CPU alone")
    config.addinivalue_line("markers", "deep: for `make test-deep` alone")
    config.addinivalue_line("markers", "compiles: a claim about compiling, which does so itself")
    artefacts.refuse_others()
    if config.option.portable:
        CUDA.plan = PORTABLE


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """Makes what the tests use, before the first of them."""
    capture = session.config.pluginmanager.getplugin("capturemanager")

    def say(line):
        with capture.global_and_fixture_disabled():
            print(line, file=sys.stderr)

    if not session.config.option.collectonly:
        artefacts.prepare(session.items, say)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    artefacts.Running.test = item
    try:
        return (yield)
    finally:
        artefacts.Running.test = None


def pytest_generate_tests(metafunc):
    if "device" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("cpu_only")
        metafunc.parametrize("device", DEVICES[:1] if only else DEVICES, indirect=True)


@pytest.fixture
def device(request):
    # The CPU is torch's default without being set, which would be a mode that torch asks.
    if request.param != "cpu":
        torch.set_default_device(request.param)
    yield request.param
    torch.set_default_device(None)


@pytest.fixture
def rng():
    return np.random.default_rng(20)


@pytest.fixture(autouse=True)
def _restored_thread_count():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def flushing():
    """Returns a context in which this thread's arithmetic flushes subnormals to zero."""

    @contextlib.contextmanager
    def mode():
        assert torch.set_flush_denormal(True), "this machine cannot flush"
        try:
            yield
        finally:
            torch.set_flush_denormal(False)

    return mode
