"""A Triton kernel on the simulator: run, a race that a missing barrier makes, and the model's time.

    python examples/gfx950_triton.py [TIMELINE.png]

Where Triton is installed the kernel below is compiled; elsewhere `gfx950_triton.s` is read, which
is what Triton 3.9.0 made of it. Neither needs a GPU. A kernel of Gluon goes the same way, by
`GluonASTSource`.
"""

import sys
from pathlib import Path

import numpy as np

import gfx950

KEPT = Path(__file__).with_suffix(".s")
KEPT_LDS = 16
"""Bytes of LDS that Triton's launcher asks for; the text does not say it."""
ROWS, COLUMNS, WAVES = 3, 1000, 4


def compiled() -> tuple[str, int]:
    """Returns the assembly text, and the bytes of LDS for a launch."""
    import triton  # noqa: PLC0415
    import triton.language as tl  # noqa: PLC0415
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415

    @triton.jit
    def softmax(x, y, columns, WIDTH: tl.constexpr):
        """Divides the powers of a row, float32 [M, columns], by their sum: a row a workgroup."""
        row, at = tl.program_id(0).to(tl.int64) * columns, tl.arange(0, WIDTH)
        numbers = tl.load(x + row + at, mask=at < columns, other=float("-inf"))
        powers = tl.exp(numbers - tl.max(numbers, 0))
        tl.store(y + row + at, powers / tl.sum(powers, 0), mask=at < columns)

    types = {"x": "*fp32", "y": "*fp32", "columns": "i32", "WIDTH": "constexpr"}
    triton.knobs.compilation.disable_line_info = True
    made = triton.compile(
        ASTSource(softmax, types, {(3,): 1024}),
        target=GPUTarget("hip", "gfx950", 64),
        options={"num_warps": WAVES, "enable_fp_fusion": True},
    )
    return made.asm["amdgcn"], made.metadata.shared


def main() -> None:
    """Runs the kernel, then one without its barriers, and times it by the model."""
    try:
        text, lds = compiled()
    except ModuleNotFoundError:
        text, lds = KEPT.read_text(), KEPT_LDS

    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32)
    y = np.zeros_like(x)
    # Triton adds two pointers of its own, which this kernel does not use.
    arguments = [x, y, np.int32(COLUMNS), 0, 0]
    result = gfx950.run(text, ROWS, 64 * WAVES, arguments, dynamic_lds=lds)
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    # exp and the quotient are a few float32 steps off.
    assert np.allclose(y, powers / powers.sum(1, keepdims=True), rtol=2**-20, atol=0)
    assert not result.hazards
    print("run: every row is right, and no hazard was found")

    without = text.replace("s_barrier", "s_nop 0")
    result = gfx950.run(without, ROWS, 64 * WAVES, arguments, dynamic_lds=lds)
    races = [hazard for hazard in result.hazards if hazard.kind == "race"]
    assert races
    print(f"without barriers: {races[0]}")

    p = gfx950.profile(text, ROWS, 64 * WAVES, arguments, dynamic_lds=lds)
    worst = max(p.stalls, key=p.stalls.get)
    print(f"model: {p.time_us:.2f} us, most of the waiting is for {worst}")
    if len(sys.argv) > 1:
        from gfx950.timing import timeline  # noqa: PLC0415  it needs matplotlib

        Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
        timeline.draw(p, sys.argv[1])


if __name__ == "__main__":
    main()
