"""The RS main loop on bfloat16: C^T += weights @ A^T, weights decoded in registers.

The next weights are decoded while the tensor cores multiply; how far ahead is a column of the config:

    a block    tensor cores    block 0     block 1     block 0 of the next stage     ...
               decode          block 1     block 0 of the next stage     ...
    a stage    tensor cores    both blocks                  both of the next stage   ...
               decode          both of the next stage       ...

Consumers that split K take every other stage, the one half even ones, the other half odd ones.
"""

from layout import Coord, row_major
from max.gpu.compute.mma import (
    wgmma_commit_group_sync,
    wgmma_fence_aligned,
    wgmma_wait_group_sync,
)
from max.gpu.sync import syncwarp

from ..decode.bf16 import ROWS, StageWeights, WeightReader
from ..instructions.packed import Pairs, weight_fragment
from ..instructions.shared_memory import store_word, wait_phase
from ..instructions.wgmma import (
    Accumulator,
    MAX_INSTRUCTION_ROWS,
    UNIT_BYTES,
    lower_word,
    multiply_fragment,
)
from ..layout import BLOCK
from ..codec import Rows
from ..pipeline.stages import RsRing, release
from ..shapes import NUMBER_BYTES, ROW_BYTES, RsConfig, STEP_BLOCKS

comptime INSTRUCTION_K = 16
"""Steps of K of one instruction."""


@fieldwise_init
struct RsWarp[config: RsConfig, Reader: WeightReader](TrivialRegisterPassable):
    """A consumer warp and the stages of a tile that it multiplies."""

    var first_step: UInt32
    """Its first step: with K split, 0 or 1."""
    var num_steps: UInt32
    var num_blocks: UInt32
    """Blocks of K in all steps; the last one may have fewer than others."""
    var reader: Self.Reader
    var flag: UInt32
    """The address of the word that says in the end whether weights were too large for bfloat16."""

    comptime Pipeline = RsRing[Self.config.layout()]

    @always_inline
    def multiply[rows: Int, //](self, mut ring: Self.Pipeline, mut sums: Accumulator[rows]):
        """Multiplies the stages as they fill; sums begin anew."""
        sums = Accumulator[rows](fill=0)
        store_word(self.flag, 0)
        comptime if Self.config.k_splits == 1:
            # Before a lane raises the flag, and before all look at it: what else keeps lanes
            # together compute-sanitizer does not see.
            syncwarp()
        else:
            if self.first_step >= self.num_steps:
                return
            ring.advance_within(self.first_step)
        comptime if Self.config.blocks_ahead == 1:
            self._multiply_blocks(ring, sums)
        else:
            self._multiply_whole_stages(ring, sums)

    @always_inline
    def load(self, ring: Self.Pipeline, step: UInt32) -> StageWeights[Self.config.layout().scale]:
        """Loads a step's weights when its stage, the next one, is full."""
        wait_phase(ring.full(), ring.parity)
        return self.reader.load(ring.here(), self.num_blocks - step * UInt32(STEP_BLOCKS))

    @always_inline
    def _multiply_blocks[rows: Int, //](self, mut ring: Self.Pipeline, mut sums: Accumulator[rows]):
        """Does so with a block decoded ahead."""
        var step = self.first_step
        var weights = self.load(ring, step)
        var may_need_two = weights.may_need_two()
        var first = weights.decode[0](may_need_two, self.flag)
        var previous = ring
        while step < self.num_steps:
            var of_rows = lower_word(ring.here().base)
            _start_block[0](first, of_rows, sums)
            if step > self.first_step:
                release(previous)

            previous = ring
            ring.advance[Self.config.k_splits]()
            step += UInt32(Self.config.k_splits)
            var next = weights
            if step < self.num_steps:
                next = self.load(ring, step)
            var second = weights.decode[1](may_need_two, self.flag)
            _start_block[1](second, of_rows, sums)
            weights = next
            may_need_two = weights.may_need_two()
            first = weights.decode[0](may_need_two, self.flag)
        wgmma_wait_group_sync[0]()
        comptime if Self.config.is_persistent:
            release(previous)

    @always_inline
    def _multiply_whole_stages[
        rows: Int, //
    ](self, mut ring: Self.Pipeline, mut sums: Accumulator[rows]):
        """Does so with a stage decoded ahead."""
        var step = self.first_step
        var weights = self.load(ring, step)
        var may_need_two = weights.may_need_two()
        # Two stages in turn: registers in flight keep their names.
        var decoded = Array[Rows[ROWS], 2 * STEP_BLOCKS](uninitialized=True)
        comptime for block in range(STEP_BLOCKS):
            decoded[block] = weights.decode[block](may_need_two, self.flag)
        while step < self.num_steps:
            comptime for turn in range(2):
                comptime HERE, NEXT = turn * STEP_BLOCKS, (1 - turn) * STEP_BLOCKS
                if step < self.num_steps:
                    var of_rows = lower_word(ring.here().base)
                    wgmma_fence_aligned()
                    comptime for block in range(STEP_BLOCKS):
                        _issue[block](decoded[HERE + block], of_rows, sums)
                    wgmma_commit_group_sync()
                    var here = ring
                    ring.advance[Self.config.k_splits]()
                    step += UInt32(Self.config.k_splits)
                    # Decoded while the tensor cores multiply.
                    if step < self.num_steps:
                        weights = self.load(ring, step)
                        may_need_two = weights.may_need_two()
                        comptime for block in range(STEP_BLOCKS):
                            decoded[NEXT + block] = weights.decode[block](may_need_two, self.flag)
                    wgmma_wait_group_sync[0]()
                    release(here)


@always_inline
def _start_block[
    rows: Int, //, block: Int
](decoded: Array[Pairs, ROWS], of_rows: UInt32, mut sums: Accumulator[rows]):
    """Starts the products of a block of a stage, and waits for those of the block before."""
    wgmma_fence_aligned()
    _issue[block](decoded, of_rows, sums)
    wgmma_commit_group_sync()
    wgmma_wait_group_sync[1]()


@always_inline
def _issue[
    rows: Int, //, block: Int
](decoded: Array[Pairs, ROWS], of_rows: UInt32, mut sums: Accumulator[rows]):
    """Issues the instructions of a block; `of_rows` is the lower word of the stage's rows.

    Rows are split among instructions, each with its part of the sums; K takes two steps.
    """
    comptime AT_ONCE = min(rows, MAX_INSTRUCTION_ROWS)
    comptime COUNT = AT_ONCE if rows % AT_ONCE == 0 else AT_ONCE // 2
    comptime STAGE = row_major[rows, ROW_BYTES // NUMBER_BYTES]()
    comptime for k_step in range(BLOCK // INSTRUCTION_K):
        comptime for first in range(0, rows, COUNT):
            comptime at = Int(STAGE(Coord(first, BLOCK * block + INSTRUCTION_K * k_step)))
            multiply_fragment["bf16", True, first, COUNT](
                weight_fragment[2 * k_step](decoded[0], decoded[1]),
                of_rows + UInt32(at * NUMBER_BYTES // UNIT_BYTES),
                sums,
            )
