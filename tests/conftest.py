"""What every test sees: devices, a seeded generator, and torch's modes put back afterwards.

A test that uses `device` runs on the CPU and, where there is one, on a CUDA device: what it
makes without naming a device lies there. Claims about the CPU alone are marked `cpu_only`.
"""

import contextlib
import gc
import os
import sys
import time

import numpy as np
import pytest
import torch

from mx_kernels._core.cuda import CUDA, PORTABLE
from tests import artefacts, claims, tiers, watchdog

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


# Inductor would find out which vectors this CPU has, once, with a compiler: in six seconds.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
# What is imported and collected stays for good, see `pytest_runtestloop`.
gc.disable()


def pytest_addoption(parser, pluginmanager):
    pluginmanager.register(watchdog)
    parser.addoption(
        "--portable",
        action="store_true",
        help="on a CUDA device, leave products to the portable kernels",
    )
    parser.addoption(
        "--minutes",
        type=float,
        help="begin no test after this time; what is left is counted as skipped",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "cpu_only: a claim about the CPU alone")
    config.addinivalue_line("markers", "deep: not of `make test`, see tiers.py")
    config.addinivalue_line("markers", "compiles: a claim about compiling, which does so itself")
    artefacts.refuse_others()
    config.pluginmanager.register(claims.Claims(), "claims")
    if config.option.minutes and not hasattr(config.option, "end"):
        # Processes of pytest-xdist get the options of the first one.
        config.option.end = time.time() + 60 * config.option.minutes
    if config.option.minutes:
        # A build may take longer than all tests: none begins in the second half.
        artefacts.Running.builds_end = config.option.end - 60 * config.option.minutes / 2
    if config.option.portable:
        CUDA.plan = PORTABLE


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    tiers.spare_combinations(items)
    if config.option.minutes:
        items[:] = tiers.in_turn(items)
    yield
    config.hook.pytest_deselected(items=tiers.leave_one_of_skipped(items))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if item.config.option.minutes and time.time() > item.config.option.end:
        pytest.skip(f"left to `make test-nightly`: {item.config.option.minutes:g} minutes are over")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """Makes what the tests use, before the first of them.

    A run of limited time may not reach them all: there each test makes what it uses.
    """
    artefacts.Running.is_collecting = False
    gc.freeze()
    gc.enable()
    capture = session.config.pluginmanager.getplugin("capturemanager")

    def say(line):
        with capture.global_and_fixture_disabled():
            print(line, file=sys.stderr)

    if not session.config.option.collectonly and not session.config.option.minutes:
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
