"""Emits cuts that the dispatch table could name, and their launches for shapes.

    mojo run candidates.mojo 16,4096,4096 64,7168,2048

    ;;;; launch <op> <cut> <M,N,K> <grid x> <y> <z> <threads> <chunks a wave> <counters> <workspace>
    ;;;; kernel <op>_<cut>

These are the cuts of the table, and a list of sensible ones, not of all: tiles as narrow
as one scale word and as wide as registers allow, waves for short and long K, splits for
few tiles. Launches are those for which a cut could pay: no wave without work, no
workgroup with more rows than needed, CUs neither mostly idle nor, with a larger tile
at hand, busy many times over.
"""

from products import emit_products

from mojo_kernels.cdna4.dispatch import (
    ANY,
    BF16_BYTES,
    CHOICES,
    CODE_BYTES,
    CUS,
    Choice,
    Kernel,
    Sources,
)
from mojo_kernels.cdna4.matmul_decode import DecodeShape
from mojo_kernels.cdna4.tiles import TILE
from std.math import ceildiv
from std.sys import argv

comptime M_N_TILES = [(1, 1), (1, 2), (1, 4), (2, 4), (2, 6), (2, 8)]
comptime WAVES_SPLITS = [(2, 1), (4, 1), (8, 1), (12, 1), (16, 1), (8, 4)]
comptime MAX_ROUNDS = 8
"""Times that a decode kernel's workgroups may fill the compute units."""
comptime IDLE_SHARE = 4
"""At least one compute unit in so many has a workgroup, unless tiles are as small as can be."""
comptime CU_WAVES = 16
"""More waves for each compute unit pay only where they can hardly be fewer."""


def decode_choice(tiles: Tuple[Int, Int], share: Tuple[Int, Int]) -> Choice:
    """Returns a row with a decode kernel for any shape."""
    var shape = DecodeShape(
        m_tiles=tiles[0],
        n_tiles=tiles[1],
        k_tiles=1,
        waves=share[0],
        depth=1,
        k_tail=False,
        splits=share[1],
    )
    return Choice(Sources.BOTH, ANY, ANY, ANY, True, Kernel.DECODE, shape, 0, "")


def could_pay(choice: Choice, m: Int, n: Int, k: Int) -> Bool:
    """Says whether a cut is worth timing for a shape."""
    if choice.has_tail(k):
        return False
    var rows, columns = choice.tile()
    var tiles = ceildiv(m, rows) * ceildiv(n, columns)
    if choice.kernel == Kernel.PREFILL:
        return tiles >= CUS // MAX_ROUNDS
    var shape = choice.shape
    if shape.up_front and shape.chunks_per_wave(k) != shape.depth:
        return False
    var groups = tiles * shape.splits
    var is_smallest = shape.tiles() == 1 or (rows == TILE and groups >= CUS // (2 * MAX_ROUNDS))
    var is_largest = shape.tiles() >= 32
    return (
        (shape.m_tiles == 1 or m > rows // 2)
        and shape.waves * shape.splits <= k // choice.step_k()
        and (groups >= CUS // IDLE_SHARE or is_smallest)
        and (tiles <= MAX_ROUNDS * CUS or is_largest)
        and (shape.splits == 1 or groups <= CUS)
        and (groups * shape.waves >= 2 * CUS or shape.waves >= 8)
        and (groups * shape.waves <= CU_WAVES * CUS or shape.waves <= 2)
    )


def show_launches[choice: Choice](shapes: Span[StaticString, _]) raises:
    """Prints the launches of a cut that could pay."""
    for shape in shapes:
        var sizes = shape.split(",")
        var m, n, k = Int(sizes[0]), Int(sizes[1]), Int(sizes[2])
        if could_pay(choice, m, n, k):
            for op, x_bytes in [("linear", BF16_BYTES), ("matmul", CODE_BYTES)]:
                var launch = choice.launch(m, n, k, x_bytes)
                print(
                    ";;;; launch", op, choice.name(), shape, launch.x, launch.y, launch.z,
                    launch.threads, launch.chunks_per_wave, launch.counter_bytes,
                    launch.workspace_bytes,
                )  # fmt: skip


def is_new[choice: Choice, rows: Int]() -> Bool:
    """Says whether none of the first `rows` of the table launches the same kernels."""
    comptime for i in range(rows):
        comptime if CHOICES[i].name() == choice.name():
            return False
    return True


def main() raises:
    """Emits every cut."""
    var shapes = argv()[1:]
    comptime for i in range(len(CHOICES)):
        comptime if is_new[CHOICES[i], i]():
            show_launches[CHOICES[i]](shapes)
            emit_products[CHOICES[i]]()
    comptime for tiles in M_N_TILES:
        comptime for share in WAVES_SPLITS:
            comptime choice = decode_choice(tiles, share)
            comptime if choice.fits(BF16_BYTES) and is_new[choice, len(CHOICES)]():
                show_launches[choice](shapes)
                emit_products[choice]()
