"""Global memory: the kernel's arguments, each an island in a 64-bit address space.

    argument i      BASE + i * ISLAND ... + size        everything between islands is a fault

An access outside the island it points into raises `MemoryFault` with lane and address. Buffers
are uint8 arrays that own a copy of the caller's data, padded to 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from gfx950.isa.formats import bf16_to_f32, f32_to_bf16

U8, U16, U32, U64, I64 = np.uint8, np.uint16, np.uint32, np.uint64, np.int64
ISLAND_BITS = 36
FIRST_ISLAND = 16
SCRATCH_ISLAND = 8
"""Where the timing model finds private memory."""


class MemoryFault(Exception):
    """An access outside every allocation."""


@dataclass
class Allocation:
    """One island."""

    name: str
    base: int
    size: int
    data: np.ndarray
    """uint8, at least `size` bytes, a multiple of 16."""
    writable: bool = True


def distinct(values: np.ndarray) -> np.ndarray:
    """Returns the values that there are, mostly one: `np.unique` sorts."""
    return np.unique(values) if (values != values[:1]).any() else values[:1]


class GlobalMemory:
    """Islands of bytes, addressed by lanes."""

    def __init__(self) -> None:
        self.islands: list[Allocation] = []

    def allocate(self, content: bytes | np.ndarray, name: str, writable: bool = True) -> Allocation:
        """Copies `content` to a fresh island."""
        raw = np.frombuffer(content, U8) if isinstance(content, bytes) else content
        raw = np.ascontiguousarray(raw).reshape(-1).view(U8)
        data = np.zeros((len(raw) + 31) // 16 * 16, U8)
        data[: len(raw)] = raw
        base = (FIRST_ISLAND + len(self.islands)) << ISLAND_BITS
        island = Allocation(name, base, len(raw), data, writable)
        self.islands.append(island)
        return island

    def _resolve(
        self, addr: np.ndarray, mask: np.ndarray, size: int
    ) -> Iterator[tuple[Allocation, np.ndarray, np.ndarray]]:
        """Yields (island, byte offsets, lanes) for the active lanes."""
        active = addr[mask]
        if not len(active):
            return
        numbers = (active >> I64(ISLAND_BITS)) - FIRST_ISLAND
        for number in distinct(numbers):
            lanes = mask if len(numbers) == 0 or (numbers == number).all() else mask & (
                (addr >> I64(ISLAND_BITS)) - FIRST_ISLAND == number
            )  # fmt: skip
            if not 0 <= number < len(self.islands):
                self._fault(addr, lanes, size, None)
            island = self.islands[number]
            offset = addr - I64(island.base)
            outside = lanes & ((offset < 0) | (offset > island.size - size))
            if outside.any():
                self._fault(addr, outside, size, island)
            yield island, offset, lanes

    def _fault(self, addr, lanes, size: int, island: Allocation | None) -> None:
        wave, lane = np.argwhere(lanes)[0]
        where = f"0x{int(addr[wave, lane]):x}"
        if island is not None:
            inside = int(addr[wave, lane]) - island.base
            where = f"byte {inside} of {island.name} ({island.size} bytes)"
        raise MemoryFault(f"{size}-byte access to {where}, lane {lane}, row {wave}")

    def load(self, addr: np.ndarray, mask: np.ndarray, size: int) -> np.ndarray:
        """Reads `size` bytes per lane as uint32 [ceil(size / 4), waves, lanes]; others read 0."""
        count = (size + 3) // 4
        result = np.zeros((count, *addr.shape), U32)
        for island, offset, lanes in self._resolve(addr, mask, size):
            at = np.where(lanes, offset, 0)
            if size % 4 == 0 and not (at & 3).any():
                index = (at >> 2) + np.arange(count)[:, None, None]
                np.copyto(result, island.data.view(U32)[index], where=lanes)
                continue
            for byte in range(size):
                part = island.data[at + byte].astype(U32) << U32(8 * (byte % 4))
                result[byte // 4] |= np.where(lanes, part, U32(0))
        return result

    def store(self, addr: np.ndarray, mask: np.ndarray, data: np.ndarray, size: int) -> None:
        """Writes `size` bytes per lane from uint32 [count, waves, lanes]."""
        for island, offset, lanes in self._resolve(addr, mask, size):
            if not island.writable:
                raise MemoryFault(f"store to read-only {island.name}")
            at = offset[lanes]
            if size % 4 == 0 and not (at & 3).any():
                words = island.data.view(U32)
                for i in range(size // 4):
                    words[(at >> 2) + i] = np.broadcast_to(data[i], lanes.shape)[lanes]
                continue
            for byte in range(size):
                part = np.broadcast_to(data[byte // 4], lanes.shape)[lanes]
                island.data[at + byte] = (part >> U32(8 * (byte % 4))).astype(U8)

    def atomic(
        self, addr: np.ndarray, mask: np.ndarray, data: np.ndarray, op: AtomicOp
    ) -> np.ndarray:
        """Applies `op` lane after lane and returns the old values like `load`."""
        count = op.registers
        old = np.zeros((count, *addr.shape), U32)
        for island, offset, lanes in self._resolve(addr, mask, 4 * count):
            apply_atomic(island.data.view(U32), offset >> 2, lanes, data, old=old, op=op)
        return old


@dataclass(frozen=True)
class AtomicOp:
    """A read-modify-write: `update(old, data)` on one value of `dtype`."""

    dtype: type
    update: Callable
    data_values: int = 1

    @property
    def registers(self) -> int:
        """Registers that one value occupies."""
        return max(1, np.dtype(self.dtype).itemsize // 4)


def apply_atomic(words, index, lanes, data, *, old, op: AtomicOp) -> None:
    """Applies `op` to `words` (uint32), lanes one after another in the order of waves."""
    at, count = index[lanes], op.registers
    operands = np.ascontiguousarray(data[:, lanes].T)
    before = np.empty((len(at), count), U32)
    distinct = len(at) < 2 or np.diff(np.sort(at)).min() >= count
    for part in [slice(None)] if distinct else [slice(i, i + 1) for i in range(len(at))]:
        where = at[part, None] + np.arange(count)
        before[part] = words[where]
        values = np.split(operands[part].view(op.dtype), op.data_values, axis=1)
        with np.errstate(all="ignore"):
            after = op.update(before[part].view(op.dtype), *values)
        words[where] = np.ascontiguousarray(after, op.dtype).view(U32)
    old[:, lanes] = before.T


def _wrap_increment(old, data):
    return np.where(old >= data, 0, old + 1)


def _wrap_decrement(old, data):
    return np.where((old == 0) | (old > data), data, old - 1)


def _bf16_add(old, data):
    return f32_to_bf16(bf16_to_f32(old) + bf16_to_f32(data)).astype(U16)


def _compare_swap(old, new, expected):
    return np.where(old == expected, new, old)


def _common(unsigned: type, signed: type) -> dict[str, AtomicOp]:
    return {
        "swap": AtomicOp(unsigned, lambda old, data: data),
        "cmpswap": AtomicOp(unsigned, _compare_swap, 2),
        "add": AtomicOp(unsigned, np.add),
        "sub": AtomicOp(unsigned, np.subtract),
        "rsub": AtomicOp(unsigned, lambda old, data: data - old),
        "smin": AtomicOp(signed, np.minimum),
        "umin": AtomicOp(unsigned, np.minimum),
        "smax": AtomicOp(signed, np.maximum),
        "umax": AtomicOp(unsigned, np.maximum),
        "and": AtomicOp(unsigned, np.bitwise_and),
        "or": AtomicOp(unsigned, np.bitwise_or),
        "xor": AtomicOp(unsigned, np.bitwise_xor),
        "inc": AtomicOp(unsigned, _wrap_increment),
        "dec": AtomicOp(unsigned, _wrap_decrement),
    }


ATOMICS: dict[str, AtomicOp] = {
    **_common(U32, np.int32),
    **{f"{name}_x2": op for name, op in _common(U64, I64).items()},
    "add_f32": AtomicOp(np.float32, np.add),
    "min_f32": AtomicOp(np.float32, np.fmin),
    "max_f32": AtomicOp(np.float32, np.fmax),
    "add_f64": AtomicOp(np.float64, np.add),
    "min_f64": AtomicOp(np.float64, np.fmin),
    "max_f64": AtomicOp(np.float64, np.fmax),
    "pk_add_f16": AtomicOp(np.float16, np.add),
    "pk_add_bf16": AtomicOp(np.uint16, _bf16_add),
}
"""By the name that follows `global_atomic_`."""
