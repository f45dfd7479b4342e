"""LDS bank conflicts, counted exactly from the addresses of the lanes.

A wave's access is served in phases; lanes of one phase share a pass over the banks. Within
a phase two lanes serialise when they touch different dwords of one bank; lanes on the same
dword are served together. With 64 banks of 4 bytes a phase moves at most 256 bytes:

    read  b8 .. b32     one phase of 64 lanes
    read  b64           two phases of 32 lanes
    read  b96, b128     {0-3,12-15,20-27}, {4-11,16-19,28-31}, then the same plus 32
    write b8 .. b32     two phases of 32 lanes over 32 banks
    write b64           four of 16;   write b96, b128: eight of 8

The b128 read phases are documented; the write side (128 bytes a cycle, as on CDNA3) and the
b64 read phases are the natural reading of the bandwidth figures and marked so in README.md.
"""

from __future__ import annotations

import numpy as np

LANES = 64
BANK_BYTES = 4


def _spans(*spans):
    """Returns lanes of inclusive (first, last) spans."""
    return [lane for first, last in spans for lane in range(first, last + 1)]


def _even(lanes_per_phase):
    return np.arange(LANES).reshape(-1, lanes_per_phase)


_B128_HALF = (_spans((0, 3), (12, 15), (20, 27)), _spans((4, 11), (16, 19), (28, 31)))
READ_B128_PHASES = np.array(
    [[lane + 32 * half for lane in p] for half in (0, 1) for p in _B128_HALF]
)


def phases(num_bytes: int, is_write: bool) -> np.ndarray:
    """Returns the lanes of each phase, [phases, lanes], for an access of `num_bytes` a lane."""
    if is_write:
        return _even(32 if num_bytes <= 4 else 16 if num_bytes == 8 else 8)
    if num_bytes <= 4:
        return _even(64)
    return _even(32) if num_bytes == 8 else READ_B128_PHASES


def access_cycles(address, active, num_bytes: int, banks: int, *, is_write: bool):
    """Counts the LDS cycles of many wave accesses at once.

    Args:
        address: byte address of each lane, [accesses, 64].
        active: lanes that take part, bool [accesses, 64].
        num_bytes: bytes of each lane.
        banks: banks that the side (read or write) has.
        is_write: whether LDS is written.

    Returns:
        (cycles, free) of each access, int [accesses]: the cycles it takes and those it would
        take without conflicts. Their difference is what conflicts cost.
    """
    table = phases(num_bytes, is_write)
    num_dwords = max(1, num_bytes // BANK_BYTES)
    first = np.asarray(address, np.int64)[:, table] // BANK_BYTES
    dword = first[..., None] + np.arange(num_dwords)
    lanes_in = np.broadcast_to(np.asarray(active, bool)[:, table, None], dword.shape)

    accesses, num_phases = dword.shape[:2]
    dword = np.where(lanes_in, dword, -1).reshape(accesses * num_phases, -1)
    dword.sort(axis=1)
    distinct = dword >= 0
    distinct[:, 1:] &= dword[:, 1:] != dword[:, :-1]
    rows = np.broadcast_to(np.arange(len(dword))[:, None], dword.shape)[distinct]
    load = np.zeros((len(dword), banks), np.int64)
    np.add.at(load, (rows, dword[distinct] % banks), 1)

    worst = load.max(axis=1).reshape(accesses, num_phases)
    used = worst > 0
    return np.maximum(worst.sum(axis=1), 1), np.maximum(used.sum(axis=1), 1)
