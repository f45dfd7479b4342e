"""Runs what a call would launch: `out` is then what a CUDA device would have made."""

from __future__ import annotations

from functools import cache

from tests.ptx.calls import Recorded
from tests.ptx.machine import Launch, Module
from tests.ptx.memory import Memory


@cache
def module_of(text: str) -> Module:
    """Returns a module, read once."""
    return Module(text)


def run(recorded: Recorded, seed: int = 0):
    """Runs the launches of a call one after the other, and returns its result."""
    memory = Memory()
    for i, (address, view, writes) in enumerate(recorded.buffers):
        memory.add(address, view, f"buffer {i}", writes=writes)
    for launch in recorded.launches:
        Launch(
            module_of(launch.ptx), launch.entry, launch.grid, launch.threads, launch.arguments,
            memory, cluster=launch.cluster, shared_bytes=launch.shared_bytes, seed=seed,
        ).run()  # fmt: skip
    return recorded.out
