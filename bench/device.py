"""What the machine is called in a result, and which commit was measured.

A number without its device, commit and date cannot be compared with another, so
every row carries the strings made here.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

X86_LEVELS = (
    ("avx512_vnni", "AVX512-VNNI"),
    ("avx512f", "AVX512"),
    ("avx_vnni", "AVX-VNNI"),
    ("avx2", "AVX2"),
)
"""Processor flag and the name it gets, strongest first."""


def describe_cpu(cpuinfo: Path = Path("/proc/cpuinfo"), cores: int | None = None) -> str:
    """Returns processor, instruction level and usable cores in one line."""
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    facts = _first_processor(cpuinfo)
    model = facts.get("model name", platform.processor() or platform.machine())
    if "model name" in facts and "cpu family" in facts:
        model += f" (family {facts['cpu family']} model {facts.get('model', '?')})"
    flags = facts.get("flags", "").split()
    level = next((name for flag, name in X86_LEVELS if flag in flags), platform.machine())
    return f"{model}, {level}, {cores} cores"


def describe_commit(repository: Path = REPOSITORY) -> str:
    """Returns the short commit, marked when tracked files differ from it.

    What a benchmark itself writes (`bench/results`, its pages) does not count. A copy without a
    repository is told its commit by the environment variable BENCH_COMMIT.
    """
    if told := os.environ.get("BENCH_COMMIT"):
        return told
    try:
        commit = _git(repository, "rev-parse", "--short", "HEAD")
        changed = _git(
            repository, "status", "--porcelain", "--untracked-files=no",
            "--", ".", ":!bench/results", ":!docs/pages/benchmarks",
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-changed" if changed else commit


def today() -> str:
    """Returns the date in UTC, as year-month-day."""
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def _first_processor(cpuinfo: Path) -> dict[str, str]:
    if not cpuinfo.exists():
        return {}
    first = cpuinfo.read_text().split("\n\n")[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()
