"""What the machine can do at all, measured in the same run as the kernels.

Four rates bound every operation here: reading memory, int8 dot products, float32
and bfloat16 products. Each is the best of several tries of the fastest thing torch
has for it, on as many threads as torch has:

    read_bandwidth   sum of int64 over a buffer, the buffer as large as the
                     operands of the shape, so that caches count as they should
    int8_peak        `torch._int_mm`, the better of two square sizes
    float_peak       `torch.mm`, likewise

An operation takes at least `max(bytes / bandwidth, operations / peak)`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

PEAK_SIZES = 512, 1024
"""The small one fits the second-level cache, and has more tries."""
MIN_TRIES = 15
MIN_TRYING_S = 30e-3
"""Long enough for some tries to fall between what else the host is doing."""
DRAM_BYTES = 128 << 20
"""Guess: larger than the last-level cache of most hosts; read from memory each time."""
CACHE_BYTES = 8 << 20
"""Guess: fits the last-level cache of most hosts and no private one."""


def best_seconds(call: Callable[[], object]) -> float:
    """Returns the time of the fastest of several calls, after one untimed."""
    call()
    times: list[float] = []
    while len(times) < MIN_TRIES or sum(times) < MIN_TRYING_S:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def int8_peak() -> float:
    """Returns operations a second of an int8 matrix product."""
    squares = (torch.randint(-127, 128, (n, n), dtype=torch.int8) for n in PEAK_SIZES)
    return max(_rate(a, torch._int_mm) for a in squares)


def float_peak(dtype: torch.dtype) -> float:
    """Returns operations a second of a matrix product of floats."""
    return max(_rate(torch.randn(n, n).to(dtype), torch.mm) for n in PEAK_SIZES)


def _rate(a: torch.Tensor, multiply: Callable) -> float:
    return 2 * len(a) ** 3 / best_seconds(lambda: multiply(a, a))


def read_bandwidth(num_bytes: int) -> float:
    """Returns bytes a second of repeatedly reading a buffer of `num_bytes`.

    The time of the same call on eight bytes is taken off, so that the cost of
    calling torch does not count as memory time.
    """
    words = max(1, num_bytes // 8)
    buffer = torch.arange(words, dtype=torch.int64)
    call_s = best_seconds(buffer[:1].sum)
    read_s = best_seconds(buffer.sum)
    return words * 8 / max(read_s - call_s, 0.1 * read_s)


@dataclass
class Roofline:
    """The measured limits of this machine for one thread count."""

    int8_ops_per_s: float
    f32_ops_per_s: float
    bf16_ops_per_s: float
    cache_bytes_per_s: float
    dram_bytes_per_s: float
    _bandwidth_at: dict[int, float] = field(default_factory=dict)

    @classmethod
    def measure(cls) -> Roofline:
        """Measures the limits for torch's present thread count."""
        return cls(
            int8_ops_per_s=int8_peak(),
            f32_ops_per_s=float_peak(torch.float32),
            bf16_ops_per_s=float_peak(torch.bfloat16),
            cache_bytes_per_s=read_bandwidth(CACHE_BYTES),
            dram_bytes_per_s=read_bandwidth(DRAM_BYTES),
        )

    def least_us(self, *, num_bytes: int, int8_ops: int = 0, bf16_ops: int = 0) -> float:
        """Returns the microseconds below which no implementation gets.

        Memory is read at the rate that a buffer of just this size reaches.
        """
        if num_bytes not in self._bandwidth_at:
            self._bandwidth_at[num_bytes] = read_bandwidth(num_bytes)
        memory_s = num_bytes / self._bandwidth_at[num_bytes]
        arithmetic_s = int8_ops / self.int8_ops_per_s + bf16_ops / self.bf16_ops_per_s
        return max(memory_s, arithmetic_s) * 1e6
