"""The number of threads, and who calls from where, change no bit."""

import os
import signal
import threading

import numpy as np
import pytest
import torch

import mx_kernels as mx
from cases import LAYOUTS, mx_tensor, random_operand
from mx_kernels._facts import facts

# Sizes that are cut into several tasks, with a ragged last one.
M, N, K = 300, 400, 1056


@pytest.fixture
def problem(rng):
    x = torch.from_numpy(rng.standard_normal((M, K))).bfloat16()
    codes, scales = random_operand(rng, N, K)
    return x, {layout: mx_tensor(codes, scales, layout) for layout in LAYOUTS}


def every_result(x, weights):
    """Every operation on every layout, as a list of tensors of bytes."""
    q = mx.quantize(x)
    results = [q.codes, q.scales]
    for w in weights.values():
        results += [mx.linear(x, w), mx.linear(x[:4], w), mx.matmul(q, w), w.dequantize("float32")]
        for row in LAYOUTS.values():
            moved = w.preshuffle(device=row["device"]) if row["device"] else w.unshuffle()
            results += [moved.codes, moved.scales]
    return [result.contiguous().view(torch.uint8) for result in results]


def assert_same_bits(got, expected):
    assert len(got) == len(expected)
    for i, (left, right) in enumerate(zip(got, expected, strict=True)):
        assert torch.equal(left, right), f"result {i}"


def test_a_team_is_found():
    # Otherwise the claims below compare one thread with itself.
    assert torch.backends.openmp.is_available()
    assert facts().team != 0


@pytest.mark.parametrize("threads", [2, 3])
def test_any_number_of_threads_gives_the_same_bits(problem, threads):
    torch.set_num_threads(1)
    expected = every_result(*problem)
    torch.set_num_threads(threads)
    for _ in range(3):
        assert_same_bits(every_result(*problem), expected)


def test_python_threads_do_not_disturb_each_other(problem):
    torch.set_num_threads(2)
    expected, failures = every_result(*problem), []

    def work():
        try:
            for _ in range(3):
                assert_same_bits(every_result(*problem), expected)
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=work) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert failures == []


def test_a_launch_lets_other_python_threads_run(problem):
    x, weights = problem
    torch.set_num_threads(1)
    ticks, running = [0], threading.Event()

    def count():
        while running.is_set():
            ticks[0] += 1

    running.set()
    counter = threading.Thread(target=count)
    counter.start()
    big = x.repeat(10, 1)
    before = ticks[0]
    mx.linear(big, weights["plain"])
    during = ticks[0] - before
    running.clear()
    counter.join()
    assert during > 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes_the_same_bits(problem):
    # The team does not survive a fork: a child that waited for it would hang. torch's own
    # parallel functions do, so the child compares with NumPy.
    torch.set_num_threads(2)
    expected = [result.numpy() for result in every_result(*problem)]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        verdict = b"wrong"
        try:
            signal.alarm(60)
            got = [result.numpy() for result in every_result(*problem)]
            if all(map(np.array_equal, got, expected)):
                verdict = b"right"
        finally:
            os.write(writer, verdict)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"right"
    os.waitpid(child, 0)
