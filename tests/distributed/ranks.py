"""Programs on several ranks of gloo or NCCL: each is a process of its own, and leaves its results.

results = run("products", 2, tmp_path)      a dict of tensors for each rank

python -m tests.distributed.ranks PROGRAM FOLDER RANK RANKS
"""

import datetime
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 600
"""Of a whole program; its ranks give each other up after `PATIENCE_SECONDS`."""
PATIENCE_SECONDS = 120


def start(program: str, ranks: int, folder: Path) -> list[subprocess.Popen]:
    """Starts a program; the caller waits for it."""
    folders = [ROOT, ROOT / "python", ROOT / "tests", os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(map(str, folders))
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.distributed.ranks", program, str(folder)]
    return [
        subprocess.Popen(
            [*command, str(rank), str(ranks)],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]


def finish(processes: list[subprocess.Popen]) -> list[tuple[int, str]]:
    """Waits for ranks; returns how each ended, and what it said."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    try:
        said = [p.communicate(timeout=deadline - time.monotonic())[0] for p in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, text) for p, text in zip(processes, said, strict=True)]


def run(program: str, ranks: int, folder: Path) -> list[dict[str, torch.Tensor]]:
    """Runs a program to its end; returns what each rank found."""
    for rank, (code, said) in enumerate(finish(start(program, ranks, folder))):
        assert code == 0, f"rank {rank} of {ranks}:\n{said[-4000:]}"
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]


def main(program: str, folder: str, rank: str, ranks: str) -> None:
    """Is one rank."""
    import torch.distributed as dist  # noqa: PLC0415  who only starts ranks needs none of it

    from tests.distributed import programs  # noqa: PLC0415

    torch.set_num_threads(1)
    on_gpus = program == "on_gpus"
    if on_gpus:
        torch.cuda.set_device(int(rank))
    dist.init_process_group(
        "nccl" if on_gpus else "gloo",
        init_method=f"file://{folder}/store",
        rank=int(rank),
        world_size=int(ranks),
        timeout=datetime.timedelta(seconds=PATIENCE_SECONDS),
    )
    found = getattr(programs, program)(Path(folder))
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
