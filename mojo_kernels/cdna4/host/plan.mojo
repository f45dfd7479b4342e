"""A plan: a kernel of CDNA4 and how its workgroups cut the work, by name.

    streaming      m<tiles>n<tiles>w<waves>, then s<splits>, k<tiles>, d<chunks>, h<sharers> where
                   they are several, and u if all chunks are fetched up front
    interleaved    middle<rows>x<columns>, then s<splits>
    ping_pong      prefill<rows>
"""

from ...launch.grid import Grid, Workspace
from ...numbers.formats import Format
from ..chip import LDS_BYTES, TILE, TILE_BLOCKS, TILE_K
from ..streaming.shape import StreamingLds, StreamingShape
from ..interleaved.shape import InterleavedShape
from ..ping_pong.shape import COLUMNS, STAGE_BLOCKS, grid_of, has_tile, rows_of
from ..ping_pong.shape import workspace_of
from ..types import Formats, ProductTypes, float_bytes


@fieldwise_init
struct Family(Equatable, TrivialRegisterPassable):
    """A schedule, and the kernels of it."""

    var name: StaticString
    """Its folder."""

    comptime STREAMING = Self("streaming")
    comptime INTERLEAVED = Self("interleaved")
    comptime PING_PONG = Self("ping_pong")

    def kernel(self) -> String:
        return String("cdna4/", self.name, "/kernel.mojo")


def has_room(shape: StreamingShape, types: ProductTypes) -> Bool:
    """Says whether LDS has room for a streaming kernel's activations."""
    var tile_bytes = TILE * TILE_K * float_bytes(types.floats())
    return StreamingLds(shape, tile_bytes, types.formats.left).num_bytes() <= LDS_BYTES


@fieldwise_init
struct Plan(TrivialRegisterPassable):
    """A kernel and its shape, which is that of its family."""

    var family: Family
    var streaming: StreamingShape
    """Whether K may end within a chunk is settled by K."""
    var interleaved: InterleavedShape
    var m_tiles: Int
    """Tiles of rows of a wave of a ping-pong kernel."""
    var rows: Int
    """Rows of C of a workgroup."""
    var columns: Int
    var splits: Int
    """Workgroups that share a tile of C, each with a part of K."""
    var sharers: Int
    """Waves with the same part of K, which share its activations."""
    var depth: Int
    """Steps in flight of a wave of a streaming or interleaved kernel."""
    var step_k: Int
    """Elements along K of a step of the loop, of codes."""

    comptime _NO_STREAMING = StreamingShape(1, 1, 1, 1, 1, False, 1)
    comptime _NO_INTERLEAVED = InterleavedShape(2, 1, 1, 1)

    @staticmethod
    def of(shape: StreamingShape) -> Self:
        var rows, columns = shape.tile()
        return Self(
            Family.STREAMING, shape, Self._NO_INTERLEAVED, 0, rows, columns, shape.splits,
            shape.sharers, shape.depth, shape.k_tiles * TILE_K,
        )  # fmt: skip

    @staticmethod
    def of(shape: InterleavedShape) -> Self:
        return Self(
            Family.INTERLEAVED, Self._NO_STREAMING, shape, 0, shape.rows(), shape.columns(),
            shape.splits, shape.waves, shape.depth, shape.stage_k(),
        )  # fmt: skip

    @staticmethod
    def of(*, m_tiles: Int) -> Self:
        comptime STAGE_K = STAGE_BLOCKS // TILE_BLOCKS * TILE_K
        return Self(
            Family.PING_PONG, Self._NO_STREAMING, Self._NO_INTERLEAVED, m_tiles, rows_of(m_tiles),
            COLUMNS, 1, 1, 1, STAGE_K,
        )  # fmt: skip

    def name(self) -> String:
        if self.family == Family.PING_PONG:
            return String("prefill", self.rows)
        var is_interleaved = self.family == Family.INTERLEAVED
        return self.interleaved.name() if is_interleaved else self.streaming.name()

    def steps_per_wave(self, k: Int) -> Int:
        """Returns the steps of a wave of a streaming or interleaved kernel; 0 for others."""
        if self.family == Family.PING_PONG:
            return 0
        if self.family == Family.INTERLEAVED:
            return self.interleaved.stages(k)
        return self.streaming.chunks_per_wave(k)

    def step_of(self, formats: Formats) -> Int:
        """Returns the same of codes or floats: of floats by floats tiles are half as long."""
        return self.step_k // 2 if formats.are_floats() else self.step_k

    def has_tail(self, k: Int, formats: Formats = Formats.MXFP4) -> Bool:
        """Says whether K ends within a step, which takes the `k_tail` instance."""
        return k % self.step_of(formats) != 0

    def interleaved_of(self, types: ProductTypes) -> InterleavedShape:
        """Returns the shape for the codes of activations of some types."""
        return self.interleaved.of_bits(types.formats.left.element.bits)

    def streaming_of(self, k_tail: Bool) -> StreamingShape:
        """Returns the shape of the kernel whose K may end within a chunk, or of the other."""
        var shape = self.streaming
        shape.k_tail = k_tail
        return shape

    def fits(self, types: ProductTypes) -> Bool:
        """Says whether there is such a kernel for `types`, and room for activations."""
        if self.family == Family.PING_PONG:
            return has_tile(types, self.m_tiles)
        if types.formats.are_plain():
            return False
        if self.family == Family.INTERLEAVED:
            var is_encoded = not types.x or types.formats.multiply_at_once()
            var shape = self.interleaved_of(types)
            return (
                is_encoded and self.interleaved.slices == shape.slices
                and shape.lds_bytes() <= LDS_BYTES and shape.has_registers()
            )  # fmt: skip
        return has_room(self.streaming, types)

    def grid(self, m: Int, n: Int) -> Grid:
        if self.family == Family.PING_PONG:
            return grid_of(self.m_tiles, m, n)
        var is_interleaved = self.family == Family.INTERLEAVED
        return self.interleaved.grid(m, n) if is_interleaved else self.streaming.grid(m, n)

    def workspace(self, left: Format, m: Int, n: Int, k: Int, *, has_codes: Bool) -> Workspace:
        """Returns the memory in which workgroups meet; with codes if activations are floats."""
        if self.family == Family.PING_PONG:
            return workspace_of(left, self.m_tiles, m, k, has_codes=has_codes)
        if self.family == Family.INTERLEAVED:
            return self.interleaved.workspace(m, n)
        return self.streaming.workspace(m, n)
