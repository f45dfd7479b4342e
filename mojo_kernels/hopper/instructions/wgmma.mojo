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
from std.sys import _RegisterPackType
from std.sys._assembly import inlined_assembly

from ..layout import BLOCK
from ..shapes import INSTRUCTION_ROWS, NUMBER_BYTES, OCTET, ROW_BYTES
from .packed import Pairs, weight_fragment
from .shared_memory import TileAddresses, store_word

comptime MAX_INSTRUCTION_TOKENS = 128
"""The most tokens of one instruction here."""
comptime INSTRUCTION_K = 16
"""Steps of K of one instruction."""
comptime TokenSums[tokens: Int] = Array[
    SIMD[DType.float32, part_tokens(tokens) // 2], tokens // part_tokens(tokens)
]
"""A thread's sums of so many tokens, those of one instruction after the other."""
comptime UNIT_BYTES = 16
"""Unit of addresses and distances in a descriptor."""


def part_tokens(tokens: Int) -> Int:
    """Returns the tokens of an instruction, of so many in all."""
    if tokens < MAX_INSTRUCTION_TOKENS:
        return tokens
    var is_multiple = tokens % MAX_INSTRUCTION_TOKENS == 0
    return MAX_INSTRUCTION_TOKENS if is_multiple else MAX_INSTRUCTION_TOKENS // 2


@always_inline
def lower_word(address: UInt32) -> UInt32:
    """Returns the part of a descriptor that tells the address, in units that may be added."""
    return ((address & 0x3FFFF) // UInt32(UNIT_BYTES)) | (1 << 16)


comptime UPPER = (Int64(8 * ROW_BYTES // UNIT_BYTES) << 32) | (Int64(1) << 62)
"""The upper word: bytes from eight rows to the next ones, and how 128 bytes are swizzled."""


@always_inline
def descriptor(lower: UInt32) -> WGMMADescriptor[DType.bfloat16]:
    """Describes rows of 128 swizzled bytes that start where the lower word says."""
    return WGMMADescriptor[DType.bfloat16](lower.cast[DType.int64]() | UPPER)


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

    `decoded` are the pairs of two rows, `tokens` the lower word of the stage's tokens.
    """
    wgmma_fence_aligned()
    add_block[num_tokens, block](decoded, tokens, sums)
    wgmma_commit_group_sync()
    wgmma_wait_group_sync[1]()


@always_inline
def start_step[
    num_tokens: Int
](
    first: Array[Pairs, 2],
    second: Array[Pairs, 2],
    tokens: UInt32,
    mut sums: TokenSums[num_tokens],
):
    """Starts the products of both blocks of a stage, as `multiply_block` does; waits for none."""
    wgmma_fence_aligned()
    add_block[num_tokens, 0](first, tokens, sums)
    add_block[num_tokens, 1](second, tokens, sums)
    wgmma_commit_group_sync()


@always_inline
def add_block[
    num_tokens: Int, block: Int
](decoded: Array[Pairs, 2], tokens: UInt32, mut sums: TokenSums[num_tokens]):
    """Issues the instructions of one block.

    Tokens are split among instructions, each with its part of the sums; K takes two steps.
    """
    comptime TOKENS = part_tokens(num_tokens)
    comptime STAGE = row_major[num_tokens, ROW_BYTES // NUMBER_BYTES]()
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


comptime PART_SUMS = 32
"""Sums of 64 tokens."""


def _operands[first: Int, count: Int, prefix: StaticString]() -> String:
    """Returns neighbouring operands of an instruction, by their numbers."""
    var text = String(prefix, first)
    for i in range(first + 1, first + count):
        text += String(",", prefix, i)
    return text


comptime STEP_BYTES = 32
"""Bytes of a row that an instruction multiplies: 32 steps of K of bytes, 16 of bfloat16."""
comptime TileSums[tokens: Int] = Array[
    SIMD[DType.float32, min(tokens // 2, PART_SUMS)], max(tokens // 2 // PART_SUMS, 1)
]
"""A thread's sums of an instruction on so many tokens, in its order."""


def _described[name: StaticString](operand: Int) -> String:
    """Returns what makes a descriptor of its lower word: the upper one is no register."""
    var text = String(".reg .b64 ", name, "; cvt.u64.u32 ", name, ", $", operand, "; ")
    return text + String("or.b64 ", name, ", ", name, ", ", UPPER, "; ")


def _product[type: StaticString, tokens: Int, adds: Bool, in_registers: Bool]() -> String:
    """Returns the instruction; behind the sums come four registers for its weights.

    All four are weights, or the first one says where in shared memory they are. The fifth says where
    the tokens are. A type of two names has that of the first operand, then that of the other.
    """
    comptime COUNT = tokens // 2
    var is_bytes = type != "bf16"
    var types = String(type) if "." in type else String(type, ".", type)
    var weights = String("{", _operands[COUNT, 4, "$"](), "}")
    var text = String("{ .reg .pred p; setp.ne.b32 p, ", 1 if adds else 0, ", 0; ")
    comptime if not in_registers:
        text += _described["w"](COUNT)
        weights = "w"
    text += _described["t"](COUNT + 4)
    text += String("wgmma.mma_async.sync.aligned.m64n", tokens)
    text += String("k32.f32." if is_bytes else "k16.f32.", types, " {")
    text += String(_operands[0, COUNT, "$"](), "}, ", weights, ", t, p, 1, 1")
    if not is_bytes:
        text += ", 0" if in_registers else ", 0, 0"
    return text + "; }"


@always_inline
def multiply_staged[
    tokens: Int, //, type: StaticString, adds: Bool
](weights_at: UInt32, tokens_at: UInt32, mut sums: TileSums[tokens]):
    """Starts the products of 64 rows of weights and some tokens, 32 bytes of each.

    It adds them to the sums, or begins anew. Addresses are lower words of descriptors.
    """
    _start[_product[type, tokens, adds, False]()]({weights_at, 0, 0, 0}, tokens_at, sums)


@always_inline
def multiply_fragment[
    tokens: Int, //, type: StaticString, adds: Bool
](weights: SIMD[DType.uint32, 4], tokens_at: UInt32, mut sums: TileSums[tokens]):
    """The same with weights in registers.

    A lane has of its two rows four bytes each, and of what is 16 bytes behind them too.
    """
    _start[_product[type, tokens, adds, True]()](weights, tokens_at, sums)


@always_inline
def _start[
    tokens: Int, //, TEXT: String
](weights: SIMD[DType.uint32, 4], tokens_at: UInt32, mut sums: TileSums[tokens]):
    """Starts an instruction of `_product`."""
    comptime COUNT = tokens // 2
    comptime CONSTRAINTS = "=f," * COUNT + "r,r,r,r,r," + _operands[0, COUNT, ""]()
    # fmt: off
    comptime if tokens == 32:
        var a = sums[0]
        var d = inlined_assembly[
            TEXT,
            _RegisterPackType[
                Float32, Float32, Float32, Float32, Float32, Float32, Float32, Float32,
                Float32, Float32, Float32, Float32, Float32, Float32, Float32, Float32,
            ],
            constraints=CONSTRAINTS,
            has_side_effect=True,
        ](
            weights[0], weights[1], weights[2], weights[3], tokens_at,
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7],
            a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15],
        )
        comptime for i in range(COUNT):
            sums[0][i] = d[i]
    elif tokens == 64:
        var a = sums[0]
        var d = inlined_assembly[
            TEXT,
            _RegisterPackType[
                Float32, Float32, Float32, Float32, Float32, Float32, Float32, Float32,
                Float32, Float32, Float32, Float32, Float32, Float32, Float32, Float32,
                Float32, Float32, Float32, Float32, Float32, Float32, Float32, Float32,
                Float32, Float32, Float32, Float32, Float32, Float32, Float32, Float32,
            ],
            constraints=CONSTRAINTS,
            has_side_effect=True,
        ](
            weights[0], weights[1], weights[2], weights[3], tokens_at,
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7],
            a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15],
            a[16], a[17], a[18], a[19], a[20], a[21], a[22], a[23],
            a[24], a[25], a[26], a[27], a[28], a[29], a[30], a[31],
        )
        comptime for i in range(PART_SUMS):
            sums[0][i] = d[i]
    else:
        var a, b = sums[0], sums[1]
        var d = inlined_assembly[
            TEXT,
            _RegisterPackType[
                Float32, Float32, Float32, Float32, Float32, Float32, Float32, Float32,
                Float32, Float32, Float32, Float32, Float32, Float32, Float32, Float32,
                Float32, Float32, Float32, Float32, Float32, Float32, Float32, Float32,
                Float32, Float32, Float32, Float32, Float32, Float32, Float32, Float32,
                Float32, Float32, Float32, Float32, Float32, Float32, Float32, Float32,
                Float32, Float32, Float32, Float32, Float32, Float32, Float32, Float32,
                Float32, Float32, Float32, Float32, Float32, Float32, Float32, Float32,
                Float32, Float32, Float32, Float32, Float32, Float32, Float32, Float32,
            ],
            constraints=CONSTRAINTS,
            has_side_effect=True,
        ](
            weights[0], weights[1], weights[2], weights[3], tokens_at,
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7],
            a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15],
            a[16], a[17], a[18], a[19], a[20], a[21], a[22], a[23],
            a[24], a[25], a[26], a[27], a[28], a[29], a[30], a[31],
            b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7],
            b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15],
            b[16], b[17], b[18], b[19], b[20], b[21], b[22], b[23],
            b[24], b[25], b[26], b[27], b[28], b[29], b[30], b[31],
        )
        comptime for i in range(PART_SUMS):
            sums[0][i] = d[i]
            sums[1][i] = d[PART_SUMS + i]
    # fmt: on


@always_inline
def add_here(x: Float32, y: Float32) -> Float32:
    """Returns x + y; the compiler cannot do so later, and keep both until then."""
    return inlined_assembly[
        "add.rn.f32 $0, $1, $2;", Float32, constraints="=f,f,f", has_side_effect=True
    ](x, y)


@always_inline
def multiply_add_here(x: Float32, y: Float32, addend: Float32) -> Float32:
    """Returns x * y + addend likewise."""
    return inlined_assembly[
        "fma.rn.f32 $0, $1, $2, $3;", Float32, constraints="=f,f,f,f", has_side_effect=True
    ](x, y, addend)


@always_inline
def settle_sums[tokens: Int, //](mut sums: TileSums[tokens]):
    """Keeps sums from being read before the wait that precedes this."""
    comptime for i in range(tokens // 2):
        comptime part, at = divmod(i, PART_SUMS)
        sums[part][at] = inlined_assembly["", Float32, constraints="=f,0", has_side_effect=True](
            sums[part][at]
        )


@always_inline
def store_sums[
    num_tokens: Int, //, first: Int, count: Int
](sums: TokenSums[num_tokens], target: TileAddresses[DType.float32, ...]):
    """Stores a thread's sums of `count` tokens from `first` on, as [token, row of its warp].

    Lane 4 * r + p has rows r, r + 8 of tokens 2 * p, 2 * p + 1, 2 * p + 8, .., where `target`
    begins.
    """
    comptime TOKENS = part_tokens(num_tokens)
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
