"""Where the bases of a product's rows lie in a workspace, and elements of a row in a stage.

    a byte for each row of tokens, then for each weight row, both padded
    a byte for each block of each row of tokens, read where the row has no base

A stage has four blocks, a block four chunks of eight elements. A chunk's bytes are two words, each the
same one of a part of sixteen bytes; two parts are what an instruction multiplies. Weights are in the
workspace, or codes of some bits are decoded as they go:

    weights      chunk q of block b is in        as
    there        parts 2 b, 2 b + 1              word q
    4 bits       parts 2 i, 2 i + 1, i = q ^ b   word b: a lane, which has the same word of all parts,
                                                 decodes a single block, see `direct.weights`
    8 bits       the same, i = q ^ (b % 2)       word b; of blocks 2 and 3 its words are the other way
                                                 round
"""


from ...launch.queue import DevicePointer, device_pointer
from ...operands import Flat, Matrix
from ...simt.views import flat_of, rows_of
from ..host.workspace import BytePlaces
from ..layout import BLOCK
from ..shapes import BYTE_STEP_BLOCKS as STEP_BLOCKS


comptime DECODES_NONE = 0
"""Stands for the bits of codes that are decoded as they go, where none are."""


@always_inline
def place_of_chunk[decodes: Int](block: UInt32, chunk: UInt32) -> Tuple[UInt32, UInt32]:
    """Returns the first part of a chunk of a block, and the word, for weights of so many bits."""
    comptime if decodes == DECODES_NONE:
        return (2 * block, chunk)
    else:
        comptime LAST_BLOCK = UInt32(STEP_BLOCKS - 1)
        return (2 * (chunk ^ block & (LAST_BLOCK if decodes == 4 else 1)), block)


@fieldwise_init
struct Bases(TrivialRegisterPassable):
    """The bases of both sides."""

    var first: DevicePointer[DType.uint8]
    """That of the first row of tokens."""
    var weights_at: UInt32
    """Where those of weights begin."""
    var blocks_at: UInt32
    """Where those of blocks begin."""

    @staticmethod
    def at(places: BytePlaces, address: Int) -> Self:
        """Returns those of a product in a workspace."""
        return Self(
            device_pointer[DType.uint8](address + places.bases),
            UInt32(places.weight_bases),
            UInt32(places.all_bases),
        )

    def end_of(self, m: Int, k: Int) -> Int:
        """Returns the address behind them."""
        return Int(self.first) + Int(self.blocks_at) + m * (k // BLOCK)

    @always_inline
    def of_tokens(self) -> Flat[DType.uint8]:
        """Views those of the rows of tokens."""
        return flat_of(self.first)

    @always_inline
    def of_weights(self) -> Flat[DType.uint8]:
        """Views those of the weight rows."""
        return flat_of(self.first.unsafe_offset(Int(self.weights_at)))

    @always_inline
    def of_blocks(self, k: UInt32) -> Matrix[DType.uint8]:
        """Views those of the blocks of rows of tokens."""
        return rows_of(self.first.unsafe_offset(Int(self.blocks_at)), Int(k // UInt32(BLOCK)))
