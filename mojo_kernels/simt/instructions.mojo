"""Instructions of NVIDIA GPUs from Ampere on: tensor cores, copies to shared memory, bytes of floats.

Shared memory goes by 32-bit address, an offset in the group's own window. What a lane has of the
tiles of a tensor core product:

    left     16 x 16    rows l / 4 and l / 4 + 8, pairs of K at 2 * (l % 4), and 8 behind
    right    16 x 8     column l / 4, the same of K
    sums     16 x 8     rows l / 4 and l / 4 + 8, columns 2 * (l % 4) and the next
"""

from max.gpu.memory import AddressSpace, external_memory
from std.sys import _RegisterPackType
from std.sys._assembly import inlined_assembly

from ..launch.queue import DevicePointer

comptime FRAGMENT_SUMS = 4
"""Sums of a lane in a fragment of 16 x 8."""
comptime Quad[dtype: DType] = SIMD[dtype, 4]
"""Sixteen bytes: what one lane moves at a time."""


@always_inline
def keep_branch():
    """Stays a branch: without it, the compiler computes rare paths for everybody."""
    inlined_assembly["", NoneType, constraints="", has_side_effect=True]()


@always_inline
def here(x: UInt32) -> UInt32:
    """Returns x; the compiler cannot compute what follows from it earlier, and keep it."""
    return inlined_assembly["", UInt32, constraints="=r,0", has_side_effect=True](x)


@always_inline
def multiplied_here(x: UInt32, y: UInt32) -> UInt32:
    """Returns two bfloat16 products, on a branch: they are not computed before it."""
    return inlined_assembly[
        "fma.rn.bf16x2 $0, $1, $2, $3;", UInt32, constraints="=r,r,r,r", has_side_effect=True
    ](x, y, UInt32(0x80008000))


@always_inline
def multiply_add[
    type: StaticString = "bf16"
](a: SIMD[DType.uint32, 4], b: SIMD[DType.uint32, 2], c: SIMD[DType.float32, 4]) -> SIMD[
    DType.float32, 4
]:
    """Returns the lane's part of a 16 x 8 tile, c + a @ b over 16 steps of K."""
    comptime TYPES: StaticString = type + "." + type
    var d = inlined_assembly[
        "mma.sync.aligned.m16n8k16.row.col.f32."
        + TYPES
        + ".f32 {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};",
        _RegisterPackType[Float32, Float32, Float32, Float32],
        constraints="=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
        has_side_effect=False,
    ](a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3])
    return SIMD[DType.float32, 4](d[0], d[1], d[2], d[3])


@always_inline
def load_fragments(address: UInt32) -> Quad[DType.uint32]:
    """Loads four fragments of 8 x 8 two-byte numbers.

    Lane 8 * m + j tells where the sixteen bytes of row j of fragment m are; lane 4 * r + p gets
    columns 2 * p and 2 * p + 1 of row r of each.
    """
    var d = inlined_assembly[
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];",
        _RegisterPackType[UInt32, UInt32, UInt32, UInt32],
        constraints="=r,=r,=r,=r,r,~{memory}",
        has_side_effect=True,
    ](address)
    return Quad[DType.uint32](d[0], d[1], d[2], d[3])


@always_inline
def start_copy(address: UInt32, source: DevicePointer[DType.uint8], is_there: Bool):
    """Starts a copy of sixteen bytes to shared memory: zeros where there is nothing."""
    inlined_assembly[
        "cp.async.cg.shared.global [$0], [$1], 16, $2;",
        NoneType,
        constraints="r,l,r,~{memory}",
        has_side_effect=True,
    ](address, source, UInt32(16) if is_there else UInt32(0))


@always_inline
def wait_for_copies():
    """Waits for the copies that this thread has started."""
    inlined_assembly[
        "cp.async.wait_all;", NoneType, constraints="~{memory}", has_side_effect=True
    ]()


@always_inline
def multiply_add_pairs(a: UInt32, b: UInt32, c: UInt32) -> UInt32:
    """Returns a * b + c of two bfloat16 numbers, rounded once, subnormals kept."""
    return inlined_assembly[
        "fma.rn.bf16x2 $0, $1, $2, $3;", UInt32, constraints="=r,r,r,r", has_side_effect=False
    ](a, b, c)


@always_inline
def pick_bytes(a: UInt32, b: UInt32, selector: UInt32) -> UInt32:
    """Returns four of the eight bytes of two words, picked by the selector's lowest nibbles."""
    return inlined_assembly[
        "prmt.b32 $0, $1, $2, $3;", UInt32, constraints="=r,r,r,r", has_side_effect=False
    ](a, b, selector)


@always_inline
def round_two[type: StaticString](low: Float32, high: Float32) -> UInt32:
    """Rounds two numbers to a type of the instruction set, nearest even, subnormals kept."""
    return inlined_assembly[
        "cvt.rn." + type + ".f32 $0, $1, $2;",
        UInt32,
        constraints="=r,f,f",
        has_side_effect=False,
    ](high, low)


@always_inline
def bytes_of_two[type: StaticString](low: Float32, high: Float32) -> UInt16:
    """Rounds two numbers to a type of eight bits, nearest even; the largest is the last one."""
    return inlined_assembly[
        "cvt.rn.satfinite." + type + ".f32 $0, $1, $2;",
        UInt16,
        constraints="=h,f,f",
        has_side_effect=False,
    ](high, low)


@always_inline
def halves_of_bytes[type: StaticString](bytes: UInt16) -> UInt32:
    """Returns two floats of eight bits, of a type of the instruction set, as float16 numbers."""
    return inlined_assembly[
        "cvt.rn.f16x2." + type + " $0, $1;", UInt32, constraints="=r,h", has_side_effect=False
    ](bytes)


@always_inline
def shared_base() -> UInt32:
    """Returns the address of the dynamic shared memory, a multiple of 1024."""
    return UInt32(Int(external_memory[UInt8, address_space=AddressSpace.SHARED, alignment=1024]()))


@always_inline
def store_quad(address: UInt32, values: Quad[DType.uint32]):
    """Stores sixteen bytes."""
    inlined_assembly[
        "st.shared.v4.u32 [$0], {$1, $2, $3, $4};",
        NoneType,
        constraints="r,r,r,r,r,~{memory}",
        has_side_effect=True,
    ](address, values[0], values[1], values[2], values[3])


@always_inline
def load_quad(address: UInt32) -> Quad[DType.uint32]:
    """Loads sixteen bytes."""
    var d = inlined_assembly[
        "ld.shared.v4.u32 {$0, $1, $2, $3}, [$4];",
        _RegisterPackType[UInt32, UInt32, UInt32, UInt32],
        constraints="=r,=r,=r,=r,r,~{memory}",
        has_side_effect=True,
    ](address)
    return Quad[DType.uint32](d[0], d[1], d[2], d[3])


@always_inline
def store_pair(address: UInt32, values: SIMD[DType.uint32, 2]):
    """Stores eight bytes."""
    inlined_assembly[
        "st.shared.v2.u32 [$0], {$1, $2};",
        NoneType,
        constraints="r,r,r,~{memory}",
        has_side_effect=True,
    ](address, values[0], values[1])


@always_inline
def store_word(address: UInt32, value: UInt32):
    """Stores four bytes."""
    inlined_assembly[
        "st.shared.u32 [$0], $1;", NoneType, constraints="r,r,~{memory}", has_side_effect=True
    ](address, value)


@always_inline
def load_word(address: UInt32) -> UInt32:
    """Loads four bytes."""
    return inlined_assembly[
        "ld.shared.u32 $0, [$1];", UInt32, constraints="=r,r,~{memory}", has_side_effect=True
    ](address)


@always_inline
def any_thread[num_threads: Int](condition: Bool) -> Bool:
    """Says whether the condition holds in any of the threads that call it, so many."""
    return (
        inlined_assembly[
            """{
            .reg .pred p;
            setp.ne.u32 p, $1, 0;
            bar.red.or.pred p, 0, $2, p;
            selp.u32 $0, 1, 0, p;
            }""",
            UInt32,
            constraints="=r,r,n,~{memory}",
            has_side_effect=True,
        ](UInt32(1) if condition else UInt32(0), Int32(num_threads))
        != 0
    )


@always_inline
def any_lane(condition: Bool) -> Bool:
    """Says whether the condition holds in any lane of the warp; the answer is uniform."""
    return (
        inlined_assembly[
            """{
            .reg .pred p;
            setp.ne.u32 p, $1, 0;
            vote.sync.any.pred p, p, 0xffffffff;
            selp.u32 $0, 1, 0, p;
            }""",
            UInt32,
            constraints="=r,r",
            has_side_effect=True,
        ](UInt32(1) if condition else UInt32(0))
        != 0
    )
