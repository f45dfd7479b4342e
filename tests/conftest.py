"""What every test sees: a seeded generator, and the thread count put back afterwards."""

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
