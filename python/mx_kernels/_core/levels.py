"""The instruction levels of the CPU kernels: one library each, the best one picked at import.

    level          needs                         products of MXFP4       of bfloat16
    avx512_bf16    the next level's, VBMI, BF16  64-byte vpdpbusd        64-byte vdpbf16ps
    avx512_vnni    AVX-512 F, BW, DQ, VL, VNNI   64-byte vpdpbusd        64-byte vfmadd
    avx2           AVX2, FMA, BMI2, F16C         32-byte vpmaddubsw      32-byte vfmadd
    sse4           SSE4.2, POPCNT                16-byte pmaddubsw       multiply and add
    native         anything the compiler knows of the host; what other machines get

Every level gives the same bits. The environment variable MX_KERNELS_CPU names one; a level
that this CPU cannot run is refused.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path

_AVX2 = ("avx2", "fma", "bmi1", "bmi2", "f16c", "movbe")
_VNNI = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni", *_AVX2)


@dataclass(frozen=True)
class Level:
    """One row of the table: what the compiler is told and what the CPU must have."""

    name: str
    compiler_options: tuple[str, ...]
    cpu_flags: frozenset[str]

    @property
    def runs_here(self) -> bool:
        """Whether this CPU has every instruction of the level."""
        return self.cpu_flags <= cpu_flags()

    @property
    def cpu(self) -> str:
        """What code of the level needs: the level's name, or a CPU just like this one."""
        if self.cpu_flags:
            return self.name
        own = platform.processor() + " ".join(sorted(cpu_flags()))
        return f"{self.name}-{hashlib.sha256(own.encode()).hexdigest()[:16]}"


LEVELS = (
    Level(
        "avx512_bf16",
        ("--target-cpu", "x86-64-v4", "--target-features", "+avx512vnni,+avx512vbmi,+avx512bf16"),
        frozenset(("avx512_bf16", "avx512vbmi", *_VNNI)),
    ),
    Level(
        "avx512_vnni",
        ("--target-cpu", "x86-64-v4", "--target-features", "+avx512vnni"),
        frozenset(_VNNI),
    ),
    Level("avx2", ("--target-cpu", "x86-64-v3"), frozenset(_AVX2)),
    Level("sse4", ("--target-cpu", "x86-64-v2"), frozenset(("sse4_2", "popcnt"))),
)
NATIVE = Level("native", (), frozenset())


@functools.cache
def _cpu_info() -> dict[str, str]:
    """Returns what Linux says of the first core."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    fields = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in fields}


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Returns the instruction sets of this CPU, as Linux names them."""
    return frozenset((_cpu_info().get("flags") or _cpu_info().get("Features", "")).split())


def model() -> str:
    """Returns the CPU's name, with its family and model where it has them."""
    info = _cpu_info()
    numbers = [f"{name} {info[name]}" for name in ("cpu family", "model") if name in info]
    return ", ".join([info.get("model name", platform.machine()), *numbers])


def here() -> list[Level]:
    """Returns the levels that this CPU runs."""
    return [level for level in (*LEVELS, NATIVE) if level.runs_here]


def pick() -> Level:
    """Returns the level that MX_KERNELS_CPU names, or the best one that runs here.

    Raises:
        ValueError: if the name is unknown or the CPU cannot run it.
    """
    name = os.environ.get("MX_KERNELS_CPU")
    if name:
        return by_name(name)
    if platform.machine() not in ("x86_64", "AMD64"):
        return NATIVE
    return next((level for level in LEVELS if level.runs_here), NATIVE)


def by_name(name: str) -> Level:
    """Returns a level that this CPU can run."""
    known = {level.name: level for level in (*LEVELS, NATIVE)}
    if name not in known:
        raise ValueError(f"MX_KERNELS_CPU must be one of {', '.join(known)}, got {name!r}")
    level = known[name]
    if not level.runs_here:
        missing = ", ".join(sorted(level.cpu_flags - cpu_flags()))
        raise ValueError(f"MX_KERNELS_CPU={name} needs {missing}, which this CPU does not have")
    return level
