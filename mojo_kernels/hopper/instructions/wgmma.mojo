"""The warp group's instruction: descriptors of what it reads, registers of those who issue it."""

from layout import Coord, row_major
from std.memory import bitcast
from std.sys import _RegisterPackType
from std.sys._assembly import inlined_assembly

from ..shapes import INSTRUCTION_ROWS, OCTET, ROW_BYTES
from .shared_memory import TileAddresses, store_word

comptime MAX_INSTRUCTION_ROWS = 128
"""The most rows of A of one instruction here."""
comptime PART_SUMS = 32
"""Sums of 64 rows of A."""
comptime Accumulator[rows: Int] = Array[
    SIMD[DType.float32, min(rows // 2, PART_SUMS)], max(rows // 2 // PART_SUMS, 1)
]
"""A thread's sums of 64 weight rows and so many rows of A, in the order of instructions.

Lane 4 * r + p of a warp has weight rows r, r + 8 of rows 2 * p, 2 * p + 1, 2 * p + 8, .. of A.
"""
comptime UNIT_BYTES = 16
"""Unit of addresses and distances in a descriptor."""


@always_inline
def lower_word(address: UInt32) -> UInt32:
    """Returns the part of a descriptor that tells the address, in units that may be added."""
    return ((address & 0x3FFFF) // UInt32(UNIT_BYTES)) | (1 << 16)


comptime UPPER = (Int64(8 * ROW_BYTES // UNIT_BYTES) << 32) | (Int64(1) << 62)
"""The upper word: bytes from eight rows to the next ones, and how 128 bytes are swizzled."""


@always_inline
def limit_registers[direction: StaticString, count: Int]():
    """Takes registers from, or gives them to, the groups that call the other direction."""
    inlined_assembly[
        "setmaxnreg." + direction + ".sync.aligned.u32 $0;",
        NoneType,
        constraints="n",
        has_side_effect=True,
    ](Int32(count))


def _operands[first: Int, count: Int, prefix: StaticString]() -> String:
    """Returns neighbouring operands of an instruction, by their numbers."""
    var text = String(prefix, first)
    for i in range(first + 1, first + count):
        text += String(",", prefix, i)
    return text


comptime STEP_BYTES = 32
"""Bytes of a row that an instruction multiplies: 32 steps of K of bytes, 16 of bfloat16."""


def _described[name: StaticString](operand: Int) -> String:
    """Returns what makes a descriptor of its lower word: the upper one is no register."""
    var text = String(".reg .b64 ", name, "; cvt.u64.u32 ", name, ", $", operand, "; ")
    return text + String("or.b64 ", name, ", ", name, ", ", UPPER, "; ")


def _product[type: StaticString, width: Int, adds: Bool, in_registers: Bool]() -> String:
    """Returns the instruction; behind the sums come four registers for its weights.

    All four are weights, or the first one says where in shared memory they are. The fifth says where
    the rows of A are. A type of two names has that of the first operand, then that of the other.
    """
    comptime COUNT = width // 2
    var is_bytes = type != "bf16"
    var types = String(type) if "." in type else String(type, ".", type)
    var weights = String("{", _operands[COUNT, 4, "$"](), "}")
    var text = String("{ .reg .pred p; setp.ne.b32 p, ", 1 if adds else 0, ", 0; ")
    comptime if not in_registers:
        text += _described["w"](COUNT)
        weights = "w"
    text += _described["t"](COUNT + 4)
    text += String("wgmma.mma_async.sync.aligned.m64n", width)
    text += String("k32.f32." if is_bytes else "k16.f32.", types, " {")
    text += String(_operands[0, COUNT, "$"](), "}, ", weights, ", t, p, 1, 1")
    if not is_bytes:
        text += ", 0" if in_registers else ", 0, 0"
    return text + "; }"


@always_inline
def multiply_staged[
    width: Int, //, type: StaticString, adds: Bool
](weights_at: UInt32, rows_at: UInt32, mut sums: Accumulator[width]):
    """Starts the products of 64 rows of weights and some rows of A, 32 bytes of each.

    It adds them to the sums, or begins anew. Addresses are lower words of descriptors.
    """
    _start[_product[type, width, adds, False](), 0, width]({weights_at, 0, 0, 0}, rows_at, sums)


@always_inline
def multiply_fragment[
    rows: Int, //, type: StaticString, adds: Bool, first: Int = 0, count: Int = rows
](weights: SIMD[DType.uint32, 4], rows_at: UInt32, mut sums: Accumulator[rows]):
    """The same with weights in registers, for `count` rows of A from `first` on.

    A lane has of its two rows four bytes each, and of what is 16 bytes behind them too.
    """
    _start[_product[type, count, adds, True](), first, count](weights, rows_at, sums)


@always_inline
def _start[
    rows: Int, //, TEXT: String, first: Int, width: Int
](weights: SIMD[DType.uint32, 4], rows_at: UInt32, mut sums: Accumulator[rows]):
    """Starts an instruction of `_product`."""
    comptime COUNT = width // 2
    comptime PART = first // 2 // PART_SUMS
    comptime CONSTRAINTS = "=f," * COUNT + "r,r,r,r,r," + _operands[0, COUNT, ""]()
    # fmt: off
    comptime if width == 16:
        var a = sums[PART]
        var d = inlined_assembly[
            TEXT,
            _RegisterPackType[
                Float32, Float32, Float32, Float32, Float32, Float32, Float32, Float32,
            ],
            constraints=CONSTRAINTS,
            has_side_effect=True,
        ](
            weights[0], weights[1], weights[2], weights[3], rows_at,
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7],
        )
        comptime for i in range(COUNT):
            sums[PART][i] = d[i]
    elif width == 32:
        var a = sums[PART]
        var d = inlined_assembly[
            TEXT,
            _RegisterPackType[
                Float32, Float32, Float32, Float32, Float32, Float32, Float32, Float32,
                Float32, Float32, Float32, Float32, Float32, Float32, Float32, Float32,
            ],
            constraints=CONSTRAINTS,
            has_side_effect=True,
        ](
            weights[0], weights[1], weights[2], weights[3], rows_at,
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7],
            a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15],
        )
        comptime for i in range(COUNT):
            sums[PART][i] = d[i]
    elif width == 64:
        var a = sums[PART]
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
            weights[0], weights[1], weights[2], weights[3], rows_at,
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7],
            a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15],
            a[16], a[17], a[18], a[19], a[20], a[21], a[22], a[23],
            a[24], a[25], a[26], a[27], a[28], a[29], a[30], a[31],
        )
        comptime for i in range(PART_SUMS):
            sums[PART][i] = d[i]
    else:
        var a, b = sums[PART], sums[PART + 1]
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
            weights[0], weights[1], weights[2], weights[3], rows_at,
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
            sums[PART][i] = d[i]
            sums[PART + 1][i] = d[PART_SUMS + i]
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
def settle_sums[width: Int, //](mut sums: Accumulator[width]):
    """Keeps sums from being read before the wait that precedes this."""
    comptime for i in range(width // 2):
        comptime part, at = divmod(i, PART_SUMS)
        sums[part][at] = inlined_assembly["", Float32, constraints="=f,0", has_side_effect=True](
            sums[part][at]
        )


@always_inline
def store_sums[
    rows: Int, //, first: Int, count: Int
](sums: Accumulator[rows], target: TileAddresses[DType.float32, ...]):
    """Stores a thread's sums of `count` rows of A from `first` on, as [row, weight row].

    `target` begins where its first one goes.
    """
    comptime PAIR = 2
    comptime WARP_OCTETS = INSTRUCTION_ROWS // 4 // OCTET
    comptime order = row_major[rows // OCTET, WARP_OCTETS, PAIR]()
    comptime for octet in range(count // OCTET):
        comptime for row_octet in range(WARP_OCTETS):
            comptime for row in range(PAIR):
                comptime here = Coord(first // OCTET + octet, row_octet, row)
                comptime part, at = divmod(Int(order(here)), PART_SUMS)
                store_word(
                    target.at(Coord(OCTET * octet + row, OCTET * row_octet)),
                    bitcast[DType.uint32](sums[part][at]),
                )
