"""A plan: a kernel of CDNA4 and how its workgroups cut the work, by name.

    decode     m<tiles>n<tiles>w<waves>, then s<splits>, k<tiles>, d<chunks>, h<sharers> where they
               are several, and u if all chunks are fetched up front
    middle     middle<rows>x<columns>, then s<splits>
    prefill    prefill<rows>
"""

from ...launch.grid import Grid, Workspace
from ...numbers.formats import Format
from ..chip import LDS_BYTES, TILE, TILE_BLOCKS, TILE_K
from ..schedules.streaming.shape import StreamingLds as DecodeLds, StreamingShape
from ..schedules.interleaved.shape import InterleavedShape, slices_of
from ..schedules.ping_pong.shape import (
    COLUMNS,
    STAGE_BLOCKS,
    grid_of,
    has_tile,
    rows_of,
    workspace_of,
)
from ..types import Formats, ProductTypes, float_bytes


@fieldwise_init
struct Family(Equatable, TrivialRegisterPassable):
    """A family of kernels."""

    var code: Int

    comptime DECODE = Self(0)
    comptime PREFILL = Self(1)
    comptime MIDDLE = Self(2)

    def kernel(self) -> String:
        var room = "streaming" if self == Self.DECODE else "ping_pong"
        room = "interleaved" if self == Self.MIDDLE else room
        return String("cdna4/schedules/", room, "/kernel.mojo")


def has_room(cut: StreamingShape, types: ProductTypes) -> Bool:
    """Says whether LDS has room for a decode kernel's activations."""
    var tile_bytes = TILE * TILE_K * float_bytes(types.floats())
    return DecodeLds(cut, tile_bytes, types.formats.left).num_bytes() <= LDS_BYTES


@fieldwise_init
struct Plan(TrivialRegisterPassable):
    """A kernel and its cut, which is that of its family."""

    var family: Family
    var decode: StreamingShape
    """Whether K may end within a chunk is settled by K."""
    var middle: InterleavedShape
    var m_tiles: Int
    """Tiles of rows of a wave of a prefill kernel."""

    comptime _NO_DECODE = StreamingShape(1, 1, 1, 1, 1, False, 1)
    comptime _NO_MIDDLE = InterleavedShape(2, 1, 1, 1)

    @staticmethod
    def of(shape: StreamingShape) -> Self:
        return Self(Family.DECODE, shape, Self._NO_MIDDLE, 0)

    @staticmethod
    def of(shape: InterleavedShape) -> Self:
        return Self(Family.MIDDLE, Self._NO_DECODE, shape, 0)

    @staticmethod
    def of(*, m_tiles: Int) -> Self:
        return Self(Family.PREFILL, Self._NO_DECODE, Self._NO_MIDDLE, m_tiles)

    def name(self) -> String:
        if self.family == Family.PREFILL:
            return String("prefill", rows_of(self.m_tiles))
        return self.middle.name() if self.family == Family.MIDDLE else self.decode.name()

    def tile(self) -> Tuple[Int, Int]:
        if self.family == Family.PREFILL:
            return (rows_of(self.m_tiles), COLUMNS)
        if self.family == Family.MIDDLE:
            return (self.middle.rows(), self.middle.columns())
        return self.decode.tile()

    def splits(self) -> Int:
        return self.middle.splits if self.family == Family.MIDDLE else self.decode.splits

    def sharers(self) -> Int:
        return self.middle.waves if self.family == Family.MIDDLE else self.decode.sharers

    def depth(self) -> Int:
        """Returns the steps in flight of a wave of a decode or middle kernel."""
        return self.middle.depth if self.family == Family.MIDDLE else self.decode.depth

    def step_k(self) -> Int:
        if self.family == Family.PREFILL:
            return STAGE_BLOCKS // TILE_BLOCKS * TILE_K
        if self.family == Family.MIDDLE:
            return self.middle.stage_k()
        return self.decode.k_tiles * TILE_K

    def steps_per_wave(self, k: Int) -> Int:
        """Returns the steps of a wave of a decode or middle kernel; 0 for others."""
        if self.family == Family.PREFILL:
            return 0
        if self.family == Family.MIDDLE:
            return self.middle.stages(k)
        return self.decode.chunks_per_wave(k)

    def has_tail(self, k: Int) -> Bool:
        """Says whether K ends within a step, which takes the `k_tail` instance."""
        return k % self.step_k() != 0

    def decode_of(self, k_tail: Bool) -> StreamingShape:
        """Returns the cut of the decode kernel that can end within a chunk, or of the other."""
        var shape = self.decode
        shape.k_tail = k_tail
        return shape

    def fits(self, types: ProductTypes) -> Bool:
        """Says whether there is such a kernel for `types`, and room in LDS for activations."""
        if self.family == Family.PREFILL:
            return has_tile(types, self.m_tiles)
        if types.formats.are_columns:
            return False
        if self.family == Family.MIDDLE:
            var is_encoded = not types.x or types.formats == Formats.MXFP4
            return is_encoded and self.middle.slices == slices_of(types.formats.left)
        return has_room(self.decode, types)

    def grid(self, m: Int, n: Int) -> Grid:
        if self.family == Family.PREFILL:
            return grid_of(self.m_tiles, m, n)
        return self.middle.grid(m, n) if self.family == Family.MIDDLE else self.decode.grid(m, n)

    def workspace(self, left: Format, m: Int, n: Int, k: Int, *, has_codes: Bool) -> Workspace:
        """Returns the memory in which workgroups meet; with codes if activations are floats."""
        if self.family == Family.PREFILL:
            return workspace_of(left, self.m_tiles, m, k, has_codes=has_codes)
        if self.family == Family.MIDDLE:
            return self.middle.workspace(m, n)
        return self.decode.workspace(m, n)
