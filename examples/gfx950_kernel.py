"""A Mojo kernel from its source to a timeline, without a GPU: compile, run, check, profile.

    python examples/gfx950_kernel.py [TIMELINE.png]

Every step is a command that works on any kernel. Nothing here is measured: the machine code is
executed by a simulator, and times are those of a model.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_suffix(".mojo")
GROUPS, THREADS = 64, 256


def command(*words: object, expected: int = 0) -> str:
    """Runs a command, shows it with the end of what it prints, and returns that."""
    print("$", *(Path(str(word)).name for word in words), flush=True)
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)
    if done.returncode != expected:
        raise SystemExit(f"exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Takes the kernel through every step."""
    picture = Path(sys.argv[1] if len(sys.argv) > 1 else "timeline.png").resolve()
    folder = picture.parent
    folder.mkdir(parents=True, exist_ok=True)
    kernel, broken, launch, result = (
        folder / name for name in ("kernel.s", "broken.s", "launch.json", "y.bin")
    )
    gfx950 = sys.executable, "-m", "gfx950"

    kernel.write_text(command("mojo", "run", SOURCE))
    x = np.arange(GROUPS * THREADS, dtype=np.float32)
    x.tofile(folder / "x.bin")
    buffers = [{"buffer": x.nbytes, "fill": "file=x.bin"}, {"buffer": x.nbytes}]
    launch.write_text(json.dumps({"grid": [GROUPS], "block": [THREADS], "args": buffers}))

    # Does it compute the right thing?
    command(*gfx950, "run", kernel, "--launch", launch, "--dump", f"1={result}")
    y = np.fromfile(result, np.float32)
    assert np.array_equal(y, x.reshape(GROUPS, THREADS)[:, ::-1].ravel())
    print("  every number is where it belongs")

    # Does it hold for any memory timing? And would we be told if it did not?
    print(" ", command(*gfx950, "check", kernel, "--launch", launch).strip())
    broken.write_text(re.sub(r"^\s*s_barrier\n", "", kernel.read_text(), flags=re.MULTILINE))
    found = command(*gfx950, "check", broken, "--launch", launch, expected=1)
    print("  without the barrier:", found.splitlines()[0])

    # Where do the cycles go?
    said = command(*gfx950, "profile", kernel, "--launch", launch, "--picture", picture)
    print("\n".join("  " + line for line in said.splitlines()[:12]))
    print(f"the timeline is {picture.name}, beside kernel.s and launch.json")


if __name__ == "__main__":
    main()
