"""Weights lie in large pages where Linux gives them to who asks."""

import re
import weakref
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import mx_kernels as mx
from mx_kernels._core.devices import CACHE_LINE, LARGE_PAGE, _Chunk, ask_for_large_pages

OFFER = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def large_page_bytes(address):
    """Returns the bytes in large pages of the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            first, last = (int(bound, 16) for bound in bounds.groups())
            inside = first <= address < last
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the address is in no mapping")


def test_preshuffled_weights_lie_in_large_pages_where_they_are_offered():
    offered = OFFER.exists() and "[never]" not in OFFER.read_text()
    rows, k = 16384, 8192
    plain = mx.MXTensor(torch.ones(rows, k // 2).byte(), torch.full((rows, k // 32), 127).byte())
    q = plain.preshuffle("cpu")
    middle = q.codes.data_ptr() + q.codes.nbytes // 2
    assert (large_page_bytes(middle) >= q.codes.nbytes // 2) == offered


def test_weights_smaller_than_a_large_page_share_them_and_no_storage():
    offered = OFFER.exists() and "[never]" not in OFFER.read_text()
    rows, k, count = 1024, 1024, 24
    plain = mx.MXTensor(torch.ones(rows, k // 2).byte(), torch.full((rows, k // 32), 127).byte())
    weights = [plain.preshuffle("cpu") for _ in range(count)]
    total = sum(q.codes.nbytes for q in weights)
    assert weights[0].codes.nbytes < LARGE_PAGE < total
    for q in weights:
        for part in (q.codes, q.scales):
            assert part.untyped_storage().nbytes() == part.nbytes
            assert part.data_ptr() % CACHE_LINE == 0
    found = max(large_page_bytes(q.codes.data_ptr()) for q in weights)
    assert (found >= total // 3) == offered
    for q in weights:
        assert torch.equal(q.unshuffle().codes, plain.codes)


def test_a_chunk_is_taken_from_front_to_back_and_goes_with_its_last_part():
    chunk, sizes = _Chunk(), [1, CACHE_LINE, CACHE_LINE + 1, 5000]
    parts = [chunk.take(size) for size in sizes]
    steps = [after.data_ptr() - part.data_ptr() for part, after in pairwise(parts)]
    assert steps == [CACHE_LINE, CACHE_LINE, 2 * CACHE_LINE]
    memory = weakref.ref(chunk.memory)
    del chunk
    while parts:
        assert memory() is not None
        parts.pop()
    assert memory() is None


@pytest.mark.parametrize("length", [0, 1, LARGE_PAGE - 1, LARGE_PAGE, 3 * LARGE_PAGE + 5])
@pytest.mark.parametrize("offset", [0, 1, 4096])
def test_asking_leaves_the_bytes_alone(length, offset):
    memory = torch.arange(offset + length + 8).byte()
    before = memory.clone()
    ask_for_large_pages(memory.data_ptr() + offset, length)
    assert torch.equal(memory, before)
