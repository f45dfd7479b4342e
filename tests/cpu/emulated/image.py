"""Calls of the kernels and the memory they work on, for this process and for an emulated machine.

A call is what the extension module takes: the name of a function and integers, with arrays in the
place of addresses. The arrays lie in one piece of memory, so that the whole of it can be written
to a file, in which `main.c` makes the same calls, and compared afterwards: results, and what
no call may touch.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

from mx_kernels._core.facts import facts

FUNCTIONS = "quantize", "dequantize", "relayout", "multiply"
"""In the order of `main.c`."""
BASE = 1 << 36
"""Where the emulated machine has the memory."""
MEMORY_BYTES = 1 << 27
MOST_CALLS = 1 << 12
WORD_BYTES = 8
ALIGNMENT = 64
UNTOUCHED = 0x5A
ALONE = 0, 1
"""What a call ends with: no team, one thread."""


class Image:
    """One piece of memory with arrays, and calls to be made there."""

    def __init__(self):
        self.memory = np.full(MEMORY_BYTES, UNTOUCHED, np.uint8)
        self.used = (2 + 2 * MOST_CALLS) * WORD_BYTES
        self.calls: list[tuple[str, tuple]] = []
        self.results: list[tuple[str, np.ndarray]] = []

    def place(self, values: np.ndarray, shift: int = 0) -> np.ndarray:
        """Copies an array into the memory, `shift` bytes behind an aligned address."""
        start = self.used + shift
        view = self.memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
        view[...] = values
        self.used = -(-(start + values.nbytes + 1) // ALIGNMENT) * ALIGNMENT
        return view

    def result(self, label: str, shape: tuple[int, ...], dtype=np.uint8) -> np.ndarray:
        """Makes room for a result; `label` says which when it differs."""
        dtype = np.dtype(dtype)
        count = int(np.prod(shape)) * dtype.itemsize
        view = self.place(np.full(count, UNTOUCHED, np.uint8)).view(dtype).reshape(shape)
        self.results.append((label, view))
        return view

    def call(self, function: str, *arguments: int | np.ndarray) -> None:
        """Adds a call."""
        self.calls.append((function, arguments))

    def agree(self, command: list[str], path: Path) -> None:
        """Makes all calls here, and in another process on a copy, and compares every byte."""
        self._write(path)
        process = subprocess.run(
            [*command, path], capture_output=True, text=True, timeout=300, check=False
        )
        assert process.returncode == 0, f"{process.returncode}: {process.stderr}"
        got = np.fromfile(path, np.uint8)
        for function, arguments in self.calls:
            here = self._integers(arguments, self.memory.ctypes.data)
            getattr(facts().native, function)((*here, *ALONE))
        self._check_that_results_say_something()
        self._compare(got)

    def _write(self, path: Path) -> None:
        words = self.memory.view(np.int64)
        words[:2] = BASE, len(self.calls)
        assert len(self.calls) <= MOST_CALLS
        for i, (function, arguments) in enumerate(self.calls):
            placed = self.place(np.array(self._integers(arguments, BASE)))
            words[2 + 2 * i : 4 + 2 * i] = FUNCTIONS.index(function), BASE + self._offset(placed)
        self.memory[: self.used].tofile(path)

    def _offset(self, view: np.ndarray) -> int:
        return view.ctypes.data - self.memory.ctypes.data

    def _integers(self, arguments: tuple, base: int) -> list[int]:
        return [base + self._offset(a) if isinstance(a, np.ndarray) else a for a in arguments]

    def _check_that_results_say_something(self) -> None:
        for label, values in self.results:
            floats = values.astype(np.float64)
            assert (np.isfinite(floats) & (floats != floats.flat[0])).any(), f"{label}: all alike"

    def _compare(self, got: np.ndarray) -> None:
        expected = self.memory[: self.used].copy()
        for _, values in self.results:
            if values.dtype != np.uint8:
                # Any NaN is any NaN.
                start = self._offset(values)
                for memory in (got, expected):
                    floats = memory[start : start + values.nbytes].view(values.dtype)
                    floats[np.isnan(floats.astype(np.float32))] = 0.5
        differs = np.flatnonzero(got != expected)
        assert not differs.size, self._describe(got, expected, int(differs[0]), differs.size)

    def _describe(self, got, expected, first: int, count: int) -> str:
        for label, values in self.results:
            start = self._offset(values)
            if start <= first < start + values.nbytes:
                at = (first - start) // values.itemsize
                there, here = (
                    memory[start : start + values.nbytes].view(values.dtype)[at]
                    for memory in (got, expected)
                )
                where = tuple(map(int, np.unravel_index(at, values.shape)))
                return f"{label}: at {where} got {there}, expected {here}; {count} bytes differ"
        return f"a byte beside the results, at {first}; {count} bytes differ"
