"""A HIP kernel on the simulator: is the result right, and would a missing wait be found?

    python examples/gfx950_hip.py [KERNEL.s or KERNEL.co]

`gfx950_hip.s` is what clang 22 made of `gfx950_hip.hip`, whose first lines have the command. With
`-c --no-gpu-bundle-output` in place of `-S` it makes a code object, which is read as well.
"""

import sys
from pathlib import Path

import numpy as np

import gfx950

THREADS, N = 256, 1000
"""The last workgroup has threads behind the end of the arrays."""


def main() -> None:
    """Runs the kernel, then one without its wait for memory."""
    path = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_suffix(".s")
    kernel = gfx950.load(path)
    print(f"{kernel.name}: {len(kernel.instructions)} instructions, {kernel.vgprs} VGPRs")

    # clang names no arguments of HIP kernels, so they go by position; y is written in place.
    x, y = np.arange(N, dtype=np.float32), np.ones(N, np.float32)
    grid = -(-N // THREADS)
    result = gfx950.run(kernel, grid, THREADS, [x, y, np.float32(2), np.int32(N)])
    assert np.array_equal(y, 2 * x + 1)
    assert not result.hazards
    print("run: every number is right, and no hazard was found")

    without = kernel.text.replace("s_waitcnt vmcnt(0)", "s_nop 0")
    result = gfx950.run(without, grid, THREADS, [x, y, np.float32(2), np.int32(N)])
    assert "in flight" in {hazard.kind for hazard in result.hazards}
    print(f"without the wait: {result.hazards[0]}")


if __name__ == "__main__":
    main()
