"""What a kernel may touch: the buffers of a launch, each at addresses far from all others'."""

from __future__ import annotations

import bisect
import itertools

import numpy as np

PARAM, LOCAL, SHARED = 1 << 59, 1 << 60, 1 << 61
"""Where generic addresses begin: of a launch's parameters, a lane's and a group's own memory."""
PEER_BITS = 24
"""Above these bits, an address has the rank of a group of the cluster, plus one."""

BUFFER_BITS = 36
"""Above these bits, an address has the number of a buffer: no way past an end leads to another."""
ALIGNED_BITS = 12
"""Of the address in this process, an address keeps so many: what is odd there is odd here."""
numbers = itertools.count(1)


def fresh_address(address: int) -> int:
    """Returns an address that no buffer has had, aligned as that of memory of this process."""
    return (next(numbers) << BUFFER_BITS) + address % (1 << ALIGNED_BITS)


def of_space(space: str, at: np.ndarray) -> np.ndarray:
    """Returns addresses of 64 bits; a lane's own memory may be given by 32 of them."""
    at = at.astype(np.uint64)
    return at | np.uint64(LOCAL) if space == "local" else at


class Fault(Exception):
    """A kernel did what hardware would not allow, or should not."""


def rows_at(view: np.ndarray, at: np.ndarray, num_bytes: int) -> tuple[np.ndarray, tuple]:
    """Returns bytes as rows of some, and what picks those at some places, [place, byte]."""
    if (at % num_bytes).any():
        return view, (at[:, None] + np.arange(num_bytes),)
    return view[: len(view) // num_bytes * num_bytes].reshape(-1, num_bytes), (at // num_bytes,)


class Memory:
    """Buffers by address; an access outside of all of them is a fault."""

    def __init__(self):
        self.starts: list[int] = []
        self.buffers: list[tuple[int, int, np.ndarray, str, bool]] = []

    def add(self, address: int, view: np.ndarray, name: str, *, writes: bool = True) -> None:
        """Allows accesses to some bytes, which kernels find at an address."""
        at = bisect.bisect(self.starts, address)
        self.starts.insert(at, address)
        self.buffers.insert(at, (address, address + len(view), view, name, writes))

    def place(self, addresses: np.ndarray, num_bytes: int, *, writes: bool):
        """Returns the bytes that lanes access, and their places in them."""
        lowest = int(addresses.min())
        at = bisect.bisect(self.starts, lowest) - 1
        if at >= 0:
            start, end, view, name, may_write = self.buffers[at]
            if int(addresses.max()) + num_bytes <= end:
                if writes and not may_write:
                    raise Fault(f"writes to {name}, which is only read")
                return view, (addresses - np.uint64(start)).astype(np.int64)
        return None

    def load(self, addresses: np.ndarray, num_bytes: int) -> np.ndarray:
        """Returns what lanes load, [lane, byte]."""
        self.check(addresses, num_bytes)
        found = self.place(addresses, num_bytes, writes=False)
        if found:
            rows, picked = rows_at(*found, num_bytes)
            return rows[picked]
        parts = np.empty((len(addresses), num_bytes), np.uint8)
        for i in range(len(addresses)):
            view, at = self.one(addresses[i : i + 1], num_bytes, writes=False)
            parts[i] = view[at[0] : at[0] + num_bytes]
        return parts

    def store(self, addresses: np.ndarray, values: np.ndarray) -> None:
        """Stores bytes, [lane, byte]."""
        num_bytes = values.shape[1]
        self.check(addresses, num_bytes)
        found = self.place(addresses, num_bytes, writes=True)
        if found:
            rows, picked = rows_at(*found, num_bytes)
            rows[picked] = values
            return
        for i in range(len(addresses)):
            view, at = self.one(addresses[i : i + 1], num_bytes, writes=True)
            view[at[0] : at[0] + num_bytes] = values[i]

    def one(self, address: np.ndarray, num_bytes: int, *, writes: bool):
        """Returns the place of one access, or faults."""
        found = self.place(address, num_bytes, writes=writes)
        if found is None:
            raise Fault(self.describe(int(address[0]), num_bytes, writes=writes))
        return found

    def describe(self, address: int, num_bytes: int, *, writes: bool) -> str:
        """Says where an address lies."""
        at = bisect.bisect(self.starts, address) - 1
        what = "stores" if writes else "loads"
        if at < 0:
            return f"{what} {num_bytes} bytes at {address:#x}, before all buffers"
        start, end, _, name, _ = self.buffers[at]
        return (
            f"{what} {num_bytes} bytes at {name} + {address - start}, which has {end - start} bytes"
        )

    @staticmethod
    def check(addresses: np.ndarray, num_bytes: int) -> None:
        """Faults where an address is not a multiple of the access."""
        if (addresses % np.uint64(num_bytes)).any():
            raise Fault(f"an access of {num_bytes} bytes is not aligned: {addresses}")


class Barrier:
    """A barrier object in shared memory."""

    def __init__(self, arrivals: int):
        self.arrivals, self.pending, self.bytes, self.phase = arrivals, arrivals, 0, 0

    def settle(self) -> None:
        """Ends the phase, if everybody and everything has arrived."""
        if self.pending == 0 and self.bytes == 0:
            self.phase ^= 1
            self.pending = self.arrivals

    def arrive(self, count: int = 1) -> None:
        """Counts arrivals."""
        if count > self.pending:
            raise Fault(f"{count} arrive at a barrier where {self.pending} are missing")
        self.pending -= count
        self.settle()

    def expect(self, num_bytes: int) -> None:
        """Waits for bytes, too."""
        self.bytes += num_bytes

    def complete(self, num_bytes: int) -> None:
        """Counts bytes that were copied."""
        self.bytes -= num_bytes
        self.settle()
