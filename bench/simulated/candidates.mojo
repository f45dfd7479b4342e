"""Cuts that the dispatch table could name, by `<op>_<cut>`: a catalogue for `bench.simulated.tune`.

These are the cuts of the table, and a list of sensible ones, not of all: tiles as narrow
as one scale word and as wide as registers allow, waves for short and long K, splits for
few tiles. A cut has a launch for the shapes for which it could pay: no wave without work,
no workgroup with more rows than needed, CUs neither mostly idle nor, with a larger tile
at hand, busy many times over.
"""

from std.math import ceildiv
from std.os import abort
from std.python import PythonObject

from products import CODES, FLOATS, Product

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, Listed, Visitor
from mojo_kernels.cdna4.chip import CUS, TILE
from mojo_kernels.cdna4.streaming.shape import StreamingShape
from mojo_kernels.cdna4.host.table import CHOICES
from mojo_kernels.cdna4.host.plan import Family, Plan
from mojo_kernels.cdna4.types import ProductTypes
from mojo_kernels.launch.queue import Queue

comptime M_N_TILES = [(1, 1), (1, 2), (1, 4), (2, 4), (2, 6), (2, 8)]
comptime WAVES_SPLITS = [(2, 1), (4, 1), (8, 1), (12, 1), (16, 1), (8, 4)]
comptime MAX_ROUNDS = 8
"""Times that a streaming kernel's workgroups may fill the compute units."""
comptime IDLE_SHARE = 4
"""At least one compute unit in so many has a workgroup, unless tiles are as small as can be."""
comptime CU_WAVES = 16
"""More waves for each compute unit pay only where they can hardly be fewer."""


def streaming_plan(tiles: Tuple[Int, Int], share: Tuple[Int, Int]) -> Plan:
    """Returns a plan with a streaming kernel."""
    var shape = StreamingShape(
        m_tiles=tiles[0],
        n_tiles=tiles[1],
        k_tiles=1,
        waves=share[0],
        depth=1,
        k_tail=False,
        splits=share[1],
    )
    return Plan.of(shape)


def could_pay(plan: Plan, m: Int, n: Int, k: Int) -> Bool:
    """Says whether a cut is worth timing for a shape."""
    if plan.has_tail(k):
        return False
    var rows, columns = plan.rows, plan.columns
    var tiles = ceildiv(m, rows) * ceildiv(n, columns)
    if plan.family == Family.PING_PONG:
        return tiles >= CUS // MAX_ROUNDS
    if plan.family == Family.INTERLEAVED:
        var share = plan.interleaved
        var most = CUS // share.splits if share.splits > 1 else MAX_ROUNDS * CUS
        return share.supports(k) and CUS // MAX_ROUNDS <= tiles * share.splits and tiles <= most
    var shape = plan.streaming
    if shape.up_front and shape.chunks_per_wave(k) != shape.depth:
        return False
    var groups = tiles * shape.splits
    var is_smallest = shape.tiles() == 1 or (rows == TILE and groups >= CUS // (2 * MAX_ROUNDS))
    var is_largest = shape.tiles() >= 32
    return (
        (shape.m_tiles == 1 or m > rows // 2)
        and shape.waves * shape.splits <= k // plan.step_k
        and (groups >= CUS // IDLE_SHARE or is_smallest)
        and (tiles <= MAX_ROUNDS * CUS or is_largest)
        and (shape.splits == 1 or groups <= CUS)
        and (groups * shape.waves >= 2 * CUS or shape.waves >= 8)
        and (groups * shape.waves <= CU_WAVES * CUS or shape.waves <= 2)
    )


struct Candidate[types: ProductTypes, plan: Plan](Listed):
    """A cut for the shapes for which it could pay."""

    @staticmethod
    def supports(m: Int, n: Int, k: Int) -> Bool:
        return could_pay(Self.plan, m, n, k)

    @staticmethod
    def launch[Q: Queue](m: Int, n: Int, k: Int, mut queue: Q) raises:
        Product[Self.types, Self.plan].launch(m, n, k, queue)


def is_new[plan: Plan, rows: Int]() -> Bool:
    """Says whether none of the first `rows` of the table launches the same kernels."""
    comptime for i in range(rows):
        comptime if CHOICES[i].plan.name() == plan.name():
            return False
    return True


struct Candidates(Catalogue):
    """Every cut."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime for i in range(len(CHOICES)):
            comptime plan = CHOICES[i].plan
            comptime is_of_codes = plan.family == Family.INTERLEAVED
            comptime if is_new[plan, i]() and (not is_of_codes or plan.fits(CODES)):
                Self.show[plan](visitor)
        comptime for tiles in M_N_TILES:
            comptime for share in WAVES_SPLITS:
                comptime plan = streaming_plan(tiles, share)
                comptime if plan.fits(FLOATS) and is_new[plan, len(CHOICES)]():
                    Self.show[plan](visitor)

    @staticmethod
    def show[plan: Plan](mut visitor: Some[Visitor]) raises:
        """Shows a cut for floats and for codes."""
        comptime if plan.family != Family.INTERLEAVED:
            visitor.kernel[Candidate[FLOATS, plan]](String("linear_", plan.name()))
        visitor.kernel[Candidate[CODES, plan]](String("matmul_", plan.name()))


@export
def PyInit_candidates() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Candidates]("candidates")
    except error:
        abort(String("cannot create candidates: ", error))
