"""The stages of a product of bytes, in the workspace and in shared memory.

    in the workspace        192 tokens x 128 bytes, swizzled; then sets of a float32 factor a token
    in shared memory        the tokens; codes of four tiles of weight rows; scales of MX weights
                            or nothing; the tokens' factors

Stages of a tile of tokens follow one another along K. A factor is the scale of a token's block:
there is one set for a stage, where a block is 128 elements or the whole row, whose scale then
stands in every stage; of MX formats there is one for each block. Tokens that do not exist have
anything. The pipeline is that of `staged`: factors lie where four-bit weights have scales.
"""

from layout import Coord
from max.gpu.primitives.grid_controls import wait_on_dependent_grids
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.math import ceildiv

from ...launch.queue import DevicePointer, Queue, Workspace, device_pointer
from ...layouts import GRANULE_BYTES
from ...numbers.formats import Format, block_of
from ...problem import Problem
from ...simt.arguments import Weights
from ..fp8.bases import STEP_BLOCKS
from ..instructions.shared_memory import arrive_expecting, copy_bulk, wait_phase
from ..instructions.wgmma import FP8_K, FP8_TOKENS, ROW_BYTES
from ..layout import TILE_BYTES, TILE_ROWS
from ..staged.activations import PARTS, SWIZZLE, num_steps_of
from ..staged.stages import Pipeline, StageCodes, StageScales

comptime GRANULES = ROW_BYTES // GRANULE_BYTES
"""Tiles of codes of a stage along K, if codes have eight bits."""
comptime FACTORS_BYTES = 4 * FP8_TOKENS
"""Bytes of a set of factors."""
comptime MX_SETS = STEP_BLOCKS
"""Sets of factors of a stage of MX formats."""
comptime Scales = StageScales[STEP_BLOCKS]
"""A stage's scales of MX weights, words of four rows: [tile, block, row lane]."""
comptime Stages[sets: Int] = Pipeline[FP8_TOKENS, GRANULES, more_bytes_of(sets)]
"""Where stages and their barriers lie in shared memory."""
comptime TOKENS_BYTES = FP8_TOKENS * ROW_BYTES
"""Bytes of a stage's tokens."""


def scales_bytes_of(sets: Int) -> Int:
    """Returns the bytes of a stage's scales of weights."""
    return Scales.NUM_BYTES if sets == MX_SETS else 0


def more_bytes_of(sets: Int) -> Int:
    """Returns the bytes of a stage behind those that scales of four-bit weights would take."""
    var there = StageScales[GRANULES].NUM_BYTES
    return max(scales_bytes_of(sets) + sets * FACTORS_BYTES - there, 0)


def stage_bytes_of(sets: Int) -> Int:
    """Returns the bytes of a stage in the workspace."""
    return TOKENS_BYTES + sets * FACTORS_BYTES


@always_inline
def factors_at[sets: Int](stage: Stages[sets]) -> UInt32:
    """Returns where a stage's factors are, in shared memory."""
    return stage.scales().base + UInt32(scales_bytes_of(sets))


@fieldwise_init
struct Scaling(Equatable, TrivialRegisterPassable):
    """When sums are multiplied by factors, and what weights are."""

    var sets: Int
    """Sets of tokens' factors of a stage."""
    var waits: Bool
    """Whether factors wait for the end."""
    var weight_bits: Int
    """Bits of a weight's code."""

    comptime ROWS = Self(1, True, 8)
    """In the end: sides have a scale a row."""
    comptime STAGES = Self(1, False, 8)
    """After each stage: a side has a scale for each 128 elements of a row."""
    comptime MXFP8 = Self(MX_SETS, False, 8)
    """After each block of 32."""
    comptime MXFP4 = Self(MX_SETS, False, 4)
    """The same where weights have four bits."""

    @staticmethod
    def of(left: Int, right: Int, k: Int) -> Self:
        """Returns that of a pair of formats that the kernel takes."""
        if left == Format.MXFP8.code():
            return Self.MXFP4 if right == Format.MXFP4.code() else Self.MXFP8
        var blocks = max(block_of(left).k_blocks(k), block_of(right).k_blocks(k))
        return Self.ROWS if blocks == 1 else Self.STAGES

    def step_tiles(self) -> Int:
        """Returns the tiles of codes of a stage, along K."""
        return ROW_BYTES * self.weight_bits // 8 // GRANULE_BYTES


@fieldwise_init
struct TokenStages(DevicePassable, TrivialRegisterPassable):
    """Stages in the workspace."""

    comptime device_type: AnyType = Self

    var first: DevicePointer[DType.uint8]
    """The first stage of the first tile."""
    var num_steps: UInt32
    """Stages of a tile."""
    var sets: UInt32
    """Sets of factors of a stage."""
    var weight_bits: UInt32
    """Bits of a weight's code, which decide the order of the tokens', see `rows`."""

    @staticmethod
    def of(problem: Problem, scaling: Scaling, mut queue: Some[Queue]) raises -> Self:
        """Finds the stages of a product."""
        var space = workspace_of(problem.m, problem.k, scaling)
        return Self(
            device_pointer[DType.uint8](queue.workspace(space)),
            num_steps_of[STEP_BLOCKS](UInt32(problem.k)),
            UInt32(scaling.sets),
            UInt32(scaling.weight_bits),
        )

    @always_inline
    def stage(self, tile: UInt32, step: UInt32) -> DevicePointer[DType.uint8]:
        """Returns where a stage begins."""
        var index = Int(tile) * Int(self.num_steps) + Int(step)
        return self.first.unsafe_offset(index * stage_bytes_of(Int(self.sets)))

    @always_inline
    def part(self, token: UInt32, step: UInt32, part: UInt32) -> DevicePointer[DType.uint8]:
        """Returns where sixteen bytes of a token lie."""
        var tile, row = divmod(token, UInt32(FP8_TOKENS))
        var at = SWIZZLE(row * UInt32(PARTS) + part) * UInt32(GRANULE_BYTES)
        return self.stage(tile, step).unsafe_offset(Int(at))

    @always_inline
    def factor(self, token: UInt32, step: UInt32, set: UInt32) -> DevicePointer[DType.float32]:
        """Returns where the factor of a token lies, in a set of a stage."""
        var tile, row = divmod(token, UInt32(FP8_TOKENS))
        var at = TOKENS_BYTES + Int(set) * FACTORS_BYTES + 4 * Int(row)
        return self.stage(tile, step).unsafe_offset(at).unsafe_bitcast[Float32]()

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "TokenStages"


def workspace_of(m: Int, k: Int, scaling: Scaling) -> Workspace:
    """Returns the workspace that a product wants."""
    var steps = Int(num_steps_of[STEP_BLOCKS](UInt32(k)))
    return Workspace(0, ceildiv(m, FP8_TOKENS) * steps * stage_bytes_of(scaling.sets))


@fieldwise_init
struct Source[scaling: Scaling](TrivialRegisterPassable):
    """Where a filler copies the stages of a tile of C from; one thread starts all its copies."""

    var tokens: DevicePointer[DType.uint8]
    """The first stage; the next ones follow."""
    var codes: DevicePointer[DType.uint8]
    """The codes of the filler's tile in the first step."""
    var scales: DevicePointer[DType.uint8]
    """The scales of the filler's tile in the first step, of MX weights."""
    var num_granules: UInt32
    """Tiles of codes along K; the last step may have fewer."""
    var filler: UInt32
    """The filler, which is its tile's place in the stage."""

    @staticmethod
    @always_inline
    def of(
        stages: TokenStages,
        w: Weights,
        first_token: UInt32,
        first_column: UInt32,
        columns: UInt32,
        k: UInt32,
        filler: UInt32,
    ) -> Self:
        """Finds what a filler copies; the last tile of all stands in for those past it."""
        var last_tile = (columns - 1) // UInt32(TILE_ROWS)
        var tile = Int(min(first_column // UInt32(TILE_ROWS) + filler, last_tile))
        var num_granules = k // UInt32(8 * GRANULE_BYTES // Self.scaling.weight_bits)
        var num_blocks = Int(k // UInt32(FP8_K))
        return Self(
            stages.stage(first_token // UInt32(FP8_TOKENS), 0),
            w.codes.unsafe_offset(tile * Int(num_granules) * TILE_BYTES),
            w.scales.unsafe_offset(tile * num_blocks * TILE_ROWS),
            num_granules,
            filler,
        )

    @always_inline
    def copy_weights(self, pipeline: Stages[Self.scaling.sets], step: UInt32):
        """Starts the copies of the filler's tile, for which the stage waits."""
        comptime STEP_TILES = Self.scaling.step_tiles()
        var first = step * UInt32(STEP_TILES)
        var count = min(self.num_granules - first, UInt32(STEP_TILES))
        var num_bytes = count * UInt32(TILE_BYTES)
        var num_scales = UInt32(0)
        comptime if Self.scaling.sets == MX_SETS:
            num_scales = count // UInt32(STEP_TILES // STEP_BLOCKS) * UInt32(TILE_ROWS)
        arrive_expecting(pipeline.full(), num_bytes + num_scales)
        copy_bulk(
            StageCodes[STEP_TILES](pipeline.codes().base).at(Coord(self.filler, 0, 0, 0)),
            self.codes.unsafe_offset(Int(first) * TILE_BYTES),
            num_bytes,
            pipeline.full(),
        )
        comptime if Self.scaling.sets == MX_SETS:
            copy_bulk(
                Scales(pipeline.scales().base).at(Coord(self.filler, 0, 0)),
                self.scales.unsafe_offset(Int(step) * STEP_BLOCKS * TILE_ROWS),
                num_scales,
                pipeline.full(),
            )

    @always_inline
    def copy_tokens(self, pipeline: Stages[Self.scaling.sets], step: UInt32):
        """Starts the copies of tokens and factors, for which the stage waits."""
        comptime STAGE_BYTES = stage_bytes_of(Self.scaling.sets)
        var stage = self.tokens.unsafe_offset(Int(step) * STAGE_BYTES)
        arrive_expecting(pipeline.full(), UInt32(STAGE_BYTES))
        copy_bulk(pipeline.tokens(), stage, UInt32(TOKENS_BYTES), pipeline.full())
        copy_bulk(
            factors_at[Self.scaling.sets](pipeline),
            stage.unsafe_offset(TOKENS_BYTES),
            UInt32(Self.scaling.sets * FACTORS_BYTES),
            pipeline.full(),
        )


@always_inline
def fill_first_stages[
    scaling: Scaling
](var pipeline: Stages[scaling.sets], source: Source[scaling], num_steps: UInt32):
    """Copies the weights of as many stages as there are, then waits for the grid before."""
    for step in range(min(num_steps, UInt32(pipeline.STAGES))):
        source.copy_weights(pipeline, step)
        pipeline.advance()
    wait_on_dependent_grids()


@always_inline
def fill_stages[
    scaling: Scaling
](
    mut pipeline: Stages[scaling.sets],
    source: Source[scaling],
    num_steps: UInt32,
    num_filled: UInt32,
):
    """Copies tokens, and the weights of all stages but the first `num_filled`, where they are."""
    for step in range(num_steps):
        if step >= num_filled:
            wait_phase(pipeline.empty(), pipeline.parity)
            source.copy_weights(pipeline, step)
        if source.filler == 0:
            source.copy_tokens(pipeline, step)
        pipeline.advance()
