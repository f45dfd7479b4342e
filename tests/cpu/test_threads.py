"""The number of threads, and who calls from where, change no bit."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

import mx_kernels as mx
from cases import LAYOUTS, mx_tensor, random_operand
from mx_kernels._core.facts import facts
from tests.tiers import deep

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


Entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Team = ctypes.CFUNCTYPE(None, Entry, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


@pytest.fixture
def led_by(monkeypatch):
    """Puts a function in the place of the process's `GOMP_parallel`."""
    kept = []

    def lead(function):
        kept.append(Team(lambda entry, job, threads, flags: function(entry, job)))
        monkeypatch.setattr(facts(), "team", ctypes.cast(kept[-1], ctypes.c_void_p).value)

    torch.set_num_threads(2)
    return lead


LATE = 0.002
"""Seconds that a thread is off its core, less than a slice of a scheduler."""


def test_a_team_that_costs_more_than_it_saves_is_left_alone_while_it_does(led_by):
    x, waits = torch.ones(16, 7168), []

    def late(entry, job):
        entry(job)
        time.sleep(LATE)
        waits.append(time.perf_counter())

    led_by(late)
    while not waits:  # What other tests have left.
        mx.quantize(x)
    while time.perf_counter() - waits[0] < 150 * LATE:
        mx.quantize(x)
    # A tenth of the time, once what the team had saved before is spent.
    assert 3 <= len(waits) <= 20


COUNTED = """
import ctypes, torch, mx_kernels as mx
from mx_kernels._core.facts import facts
Entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Team = ctypes.CFUNCTYPE(None, Entry, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
asked = []
team = Team(lambda entry, job, threads, flags: (asked.append(threads), entry(job)))
torch.set_num_threads(2)
facts().team = ctypes.cast(team, ctypes.c_void_p).value
for _ in range(51):
    mx.quantize(torch.ones(16, 7168))
print(len(asked))
"""


def test_a_new_process_asks_its_team_each_time_while_that_costs_little():
    run = subprocess.run(
        [sys.executable, "-c", COUNTED], capture_output=True, text=True, check=True
    )
    assert run.stdout == "51\n"


@deep
def test_a_busy_core_costs_no_more_than_a_fifth_of_one_threads_time(rng):
    core = max(os.sched_getaffinity(0))
    x = torch.from_numpy(rng.standard_normal((16, 7168))).bfloat16()
    spin = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    neighbour = subprocess.Popen([sys.executable, "-c", spin])

    def seconds(threads, count=2000):
        torch.set_num_threads(threads)
        start = time.perf_counter()
        for _ in range(count):
            mx.quantize(x)
        return time.perf_counter() - start

    try:
        ratios = [seconds(2) / seconds(1) for _ in range(9)]
    finally:
        neighbour.kill()
        neighbour.wait()
    # Other processes make any of them worse.
    assert sorted(ratios)[2] < 1.2, ratios
