"""What a warp does together with tensor cores: fragments of matrices in its registers.

    m16n8k16     A 16 x 16 in four registers, B 16 x 8 in two, C 16 x 8 in four
    wgmma        64 rows, of which a warp of the group has 16; A in registers or shared memory
    ldmatrix     8 x 8 numbers of two bytes a matrix, a row of which is where a lane says

Lane 4 r + p has of an 8 x 8 matrix numbers 2 p, 2 p + 1 of row r.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from tests.ptx.memory import Fault
from tests.ptx.scalar import BYTES, LANES, from_bfloat16, halves

ROWS, PAIRS = np.divmod(np.arange(LANES), 4)


def numbers_of(registers: list[np.ndarray], kind: str = "bf16") -> np.ndarray:
    """Returns matrices of eight rows of 16 bytes, [register, row, number], as float32."""
    return numbers_from(np.stack(registers).view(np.uint8).reshape(-1, 8, 16), kind)


def left_of(registers: list[np.ndarray], kind: str = "bf16") -> np.ndarray:
    """Returns the 16 rows of 32 bytes of four registers."""
    parts = numbers_of(registers, kind)
    return np.block([[parts[0], parts[2]], [parts[1], parts[3]]])


@cache
def places_of_sums(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows and columns of what some registers hold, [register, lane]."""
    octet, half = np.divmod(np.arange(count)[:, None], 4)
    upper, second = np.divmod(half, 2)
    return ROWS + 8 * upper, 8 * octet + 2 * PAIRS + second


def sums_from(registers: list[np.ndarray]) -> np.ndarray:
    """Returns 16 rows of sums: four registers for each eight columns."""
    found = np.empty((16, 2 * len(registers)), np.float32)
    found[places_of_sums(len(registers))] = np.stack(registers).view(np.float32)
    return found


def registers_from(sums: np.ndarray) -> list[np.ndarray]:
    """Returns the registers of 16 rows of sums."""
    values = sums[places_of_sums(sums.shape[1] // 2)]
    return list(np.ascontiguousarray(values, np.float32).view(np.uint32))


def product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Returns c + a @ b.T, rounded to float32 once."""
    with np.errstate(all="ignore"):
        return (c.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64).T).astype(
            np.float32
        )


def multiply(a: list, b: list, c: list, kind: str) -> list[np.ndarray]:
    """m16n8k16 with bfloat16 or float16 numbers."""
    parts = numbers_of(b, kind)
    right = np.concatenate([parts[0], parts[1]], axis=1)
    return registers_from(product(left_of(a, kind), right, sums_from(c)))


WGMMA = re.compile(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.f32\.(\w+)\.(\w+)")


def rows_described(descriptor: int, rows: np.ndarray, num_bytes: int) -> np.ndarray:
    """Returns the addresses of the bytes of some rows, [row, byte], as a descriptor says."""
    start = (descriptor & 0x3FFF) << 4
    stride = ((descriptor >> 32) & 0x3FFF) << 4
    swizzle = descriptor >> 62
    if swizzle != 1 or (descriptor >> 49) & 7:
        raise Fault(f"no rows of 128 swizzled bytes: {descriptor:#x}")
    at = start + rows[:, None] // 8 * stride + rows[:, None] % 8 * 128 + np.arange(num_bytes)
    return at ^ ((at >> 7 & 7) << 4)


def numbers_from(raw: np.ndarray, kind: str) -> np.ndarray:
    """Returns bytes as the numbers that they are."""
    if kind == "bf16":
        return from_bfloat16(raw.view(np.uint16))
    if kind == "f16":
        return raw.view(np.float16).astype(np.float32)
    return BYTES[kind][raw].astype(np.float32)


def numbers_at(shared: np.ndarray, at: np.ndarray, kind: str) -> np.ndarray:
    """Returns the numbers in shared memory."""
    return numbers_from(np.ascontiguousarray(shared[at]), kind)


def load_matrices(rows: np.ndarray, count: int, *, turned: bool) -> list[np.ndarray]:
    """Returns the registers of matrices of which lane 8 m + r gave row r of matrix m."""
    found = []
    for matrix in range(count):
        numbers = rows[8 * matrix : 8 * matrix + 8].view(np.uint16).reshape(8, 8)
        if turned:
            numbers = numbers.T
        low, high = numbers[ROWS, 2 * PAIRS], numbers[ROWS, 2 * PAIRS + 1]
        found.append(low.astype(np.uint32) | (high.astype(np.uint32) << 16))
    return found


def rows_of_matrices(registers: list[np.ndarray], *, turned: bool) -> np.ndarray:
    """Returns the sixteen bytes that each lane stores: lane 8 m + r row r of matrix m."""
    found = np.zeros((8 * len(registers), 16), np.uint8)
    for matrix, register in enumerate(registers):
        numbers = np.zeros((8, 8), np.uint16)
        low, high = halves(register)
        numbers[ROWS, 2 * PAIRS], numbers[ROWS, 2 * PAIRS + 1] = low, high
        if turned:
            numbers = np.ascontiguousarray(numbers.T)
        found[8 * matrix : 8 * matrix + 8] = numbers.view(np.uint8).reshape(8, 16)
    return found
