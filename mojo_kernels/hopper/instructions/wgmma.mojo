"""The warp group's instruction: descriptors of what it reads, registers of those who issue it."""

from layout import Coord, row_major
from max.gpu.compute.mma import (
    WGMMADescriptor,
    wgmma_async,
    wgmma_commit_group_sync,
    wgmma_fence_aligned,
    wgmma_wait_group_sync,
)
from std.memory import bitcast
from std.sys import size_of
from std.sys._assembly import inlined_assembly

from ..layout import BLOCK
from .packed import Pairs, weight_fragment
from .shared_memory import TileAddresses, store_word

comptime INSTRUCTION_ROWS = 64
"""Weight rows of one instruction: those of a warp group."""
comptime MAX_INSTRUCTION_TOKENS = 128
"""The most tokens of one instruction here."""
comptime INSTRUCTION_K = 16
"""Steps of K of one instruction."""
comptime OCTET = 8
"""Of so many tokens a thread has a pair, of so many rows one."""
comptime TokenSums[tokens: Int] = Array[
    SIMD[DType.float32, min(tokens, MAX_INSTRUCTION_TOKENS) // 2],
    max(tokens // MAX_INSTRUCTION_TOKENS, 1),
]
"""A thread's sums of so many tokens, those of one instruction after the other."""
comptime ROW_BYTES = 128
"""Bytes of a row of tokens, which are swizzled among themselves."""
comptime NUMBER_BYTES = size_of[DType.bfloat16]()
"""Bytes of a number of a token."""
comptime UNIT_BYTES = 16
"""Unit of addresses and distances in a descriptor."""


@always_inline
def lower_word(address: UInt32) -> UInt32:
    """Returns the part of a descriptor that tells the address, in units that may be added."""
    return ((address & 0x3FFFF) // UInt32(UNIT_BYTES)) | (1 << 16)


@always_inline
def descriptor(lower: UInt32) -> WGMMADescriptor[DType.bfloat16]:
    """Describes rows of 128 swizzled bytes that start where the lower word says."""
    comptime EIGHT_ROWS = Int64(8 * ROW_BYTES // UNIT_BYTES)
    comptime SWIZZLE_128 = Int64(1) << 62
    return WGMMADescriptor[DType.bfloat16](
        lower.cast[DType.int64]() | ((EIGHT_ROWS << 32) | SWIZZLE_128)
    )


@always_inline
def limit_registers[direction: StaticString, count: Int]():
    """Takes registers from, or gives them to, the groups that call the other direction."""
    inlined_assembly[
        "setmaxnreg." + direction + ".sync.aligned.u32 $0;",
        NoneType,
        constraints="n",
        has_side_effect=True,
    ](Int32(count))


@always_inline
def multiply_block[
    num_tokens: Int, block: Int
](decoded: Array[Pairs, 2], tokens: UInt32, mut sums: TokenSums[num_tokens]):
    """Starts the products of one block, and waits for those of the block before.

    `decoded` are the pairs of two rows, `tokens` the lower word of the stage's tokens. Tokens
    are split among instructions, each with its part of the sums; K takes two steps.
    """
    comptime TOKENS = min(num_tokens, MAX_INSTRUCTION_TOKENS)
    comptime STAGE = row_major[num_tokens, ROW_BYTES // NUMBER_BYTES]()
    wgmma_fence_aligned()
    comptime for k_step in range(BLOCK // INSTRUCTION_K):
        comptime for i in range(num_tokens // TOKENS):
            comptime at = Int(STAGE(Coord(i * TOKENS, BLOCK * block + INSTRUCTION_K * k_step)))
            sums[i] = wgmma_async[
                INSTRUCTION_ROWS,
                TOKENS,
                INSTRUCTION_K,
                DType.bfloat16,
                DType.float32,
                8,
                TOKENS // 2,
                a_type=DType.bfloat16,
                b_type=DType.bfloat16,
            ](
                bitcast[DType.bfloat16, 8](weight_fragment[2 * k_step](decoded[0], decoded[1])),
                descriptor(tokens + UInt32(at * NUMBER_BYTES // UNIT_BYTES)),
                sums[i],
            )
    wgmma_commit_group_sync()
    wgmma_wait_group_sync[1]()


@always_inline
def store_sums[
    num_tokens: Int, //, first: Int, count: Int
](sums: TokenSums[num_tokens], target: TileAddresses[DType.float32, ...]):
    """Stores a thread's sums of `count` tokens from `first` on, as [token, row of its warp].

    Lane 4 * r + p has rows r, r + 8 of tokens 2 * p, 2 * p + 1, 2 * p + 8, .., where `target`
    begins.
    """
    comptime TOKENS = min(num_tokens, MAX_INSTRUCTION_TOKENS)
    comptime PAIR = 2
    comptime WARP_OCTETS = INSTRUCTION_ROWS // 4 // OCTET
    comptime order = row_major[TOKENS // OCTET, WARP_OCTETS, PAIR]()
    comptime for octet in range(count // OCTET):
        comptime for row_octet in range(WARP_OCTETS):
            comptime for token in range(PAIR):
                comptime i, here = divmod(first // OCTET + octet, TOKENS // OCTET)
                comptime at = Int(order(Coord(here, row_octet, token)))
                store_word(
                    target.at(Coord(OCTET * octet + token, OCTET * row_octet)),
                    bitcast[DType.uint32](sums[i][at]),
                )
