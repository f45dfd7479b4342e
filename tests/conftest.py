"""What every test sees: a seeded generator, and torch's modes put back afterwards."""

import contextlib

import numpy as np
import pytest
import torch


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
