"""Shared memory by 32-bit address: loads, stores, copies, and what orders them.

Addresses are offsets in the group's own shared memory window; `peer_address`
turns one into the same place of another group of the cluster. A barrier object
is eight bytes; its phases alternate between parity 0 and 1.
"""

from layout import Coord, row_major
from std.sys import _RegisterPackType, size_of
from std.sys._assembly import inlined_assembly

from ...simt.instructions import Quad, any_thread, load_quad, load_word, shared_base
from ...simt.instructions import store_pair, store_quad, store_word


@fieldwise_init
struct TileAddresses[dtype: DType, *sizes: Int](TrivialRegisterPassable):
    """A contiguous tile of shared memory, as the addresses of its elements, by coordinates.

        var room = TileAddresses[DType.float32, rows, columns](base)
        store_word(room.at(Coord(row, column)), ..)

    Nobody checks the first coordinate, so that a tile may go on. It is no TileTensor, because the
    instructions here take addresses, some of them another group's.
    """

    var base: UInt32
    """The address of its first element."""

    comptime Layout = type_of(row_major[*Self.sizes]())
    """Where an element is, in elements."""
    comptime NUM_BYTES = Self.Layout.static_product * size_of[Self.dtype]()
    """Bytes of all elements."""

    @always_inline
    def at(self, coord: Coord) -> UInt32:
        """Returns the address of an element."""
        var offset = Self.Layout()[linear_idx_type=DType.uint32](coord)
        return self.base + offset * UInt32(size_of[Self.dtype]())

    @always_inline
    def starting_at(self, coord: Coord) -> Self:
        """Returns the tile whose first element is one of this tile's."""
        return Self(self.at(coord))


@always_inline
def load_pair(address: UInt32) -> SIMD[DType.uint32, 2]:
    """Loads eight bytes."""
    var d = inlined_assembly[
        "ld.shared.v2.u32 {$0, $1}, [$2];",
        _RegisterPackType[UInt32, UInt32],
        constraints="=r,=r,r,~{memory}",
        has_side_effect=True,
    ](address)
    return SIMD[DType.uint32, 2](d[0], d[1])


@always_inline
def store_turned(address: UInt32, fragments: Quad[DType.uint32]):
    """Stores four fragments of 8 x 8 two-byte numbers, column by column.

    Lane 4 * r + p has columns 2 * p and 2 * p + 1 of row r of each. Lane 8 * m + j tells where the
    sixteen bytes of column j of fragment m go.
    """
    inlined_assembly[
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [$0], {$1, $2, $3, $4};",
        NoneType,
        constraints="r,r,r,r,r,~{memory}",
        has_side_effect=True,
    ](address, fragments[0], fragments[1], fragments[2], fragments[3])


@always_inline
def store_rows(address: UInt32, fragments: Quad[DType.uint32]):
    """Stores four fragments of 8 x 8 two-byte numbers, row by row.

    Lane 4 * r + p has columns 2 * p and 2 * p + 1 of row r of each. Lane 8 * m + j tells where the
    sixteen bytes of row j of fragment m go.
    """
    inlined_assembly[
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};",
        NoneType,
        constraints="r,r,r,r,r,~{memory}",
        has_side_effect=True,
    ](address, fragments[0], fragments[1], fragments[2], fragments[3])


@always_inline
def add_word(address: UInt32, value: UInt32) -> UInt32:
    """Adds to four bytes, whoever else does too; returns what was there before."""
    return inlined_assembly[
        "atom.shared.add.u32 $0, [$1], $2;",
        UInt32,
        constraints="=r,r,r,~{memory}",
        has_side_effect=True,
    ](address, value)


@always_inline
def peer_address(address: UInt32, rank: UInt32) -> UInt32:
    """Returns the address of the same place in the cluster's group `rank`."""
    return inlined_assembly[
        "mapa.shared::cluster.u32 $0, $1, $2;",
        UInt32,
        constraints="=r,r,r",
        has_side_effect=False,
    ](address, rank)


@always_inline
def load_peer_quad(address: UInt32) -> Quad[DType.float32]:
    """Loads sixteen bytes from a peer address."""
    var d = inlined_assembly[
        "ld.shared::cluster.v4.f32 {$0, $1, $2, $3}, [$4];",
        _RegisterPackType[Float32, Float32, Float32, Float32],
        constraints="=f,=f,=f,=f,r,~{memory}",
        has_side_effect=True,
    ](address)
    return Quad[DType.float32](d[0], d[1], d[2], d[3])


@always_inline
def load_peer_word(address: UInt32) -> UInt32:
    """Loads four bytes from a peer address."""
    return inlined_assembly[
        "ld.shared::cluster.u32 $0, [$1];",
        UInt32,
        constraints="=r,r,~{memory}",
        has_side_effect=True,
    ](address)


@always_inline
def cluster_barrier():
    """Waits for all groups of the cluster; earlier writes are visible afterwards."""
    inlined_assembly[
        "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
        NoneType,
        constraints="~{memory}",
        has_side_effect=True,
    ]()


@always_inline
def arrive_at_cluster():
    """Says that the warp is here; `wait_for_cluster` waits for all groups. Orders no memory."""
    inlined_assembly[
        "barrier.cluster.arrive.relaxed.aligned;",
        NoneType,
        constraints="~{memory}",
        has_side_effect=True,
    ]()


@always_inline
def wait_for_cluster():
    """Waits until all warps of all groups have arrived."""
    inlined_assembly[
        "barrier.cluster.wait.aligned;", NoneType, constraints="~{memory}", has_side_effect=True
    ]()


@always_inline
def leave_cluster():
    """Waits for all groups of the cluster, so that none ends while others read its memory."""
    arrive_at_cluster()
    wait_for_cluster()


@always_inline
def publish_barriers():
    """Makes barriers that this thread has made visible to the cluster."""
    inlined_assembly[
        "fence.mbarrier_init.release.cluster;",
        NoneType,
        constraints="~{memory}",
        has_side_effect=True,
    ]()


@always_inline
def send_quad(address: UInt32, sums: SIMD[DType.float32, 4], barrier: UInt32):
    """Starts storing sixteen bytes at a peer address; the barrier there counts them."""
    inlined_assembly[
        (
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [$0], {$1, $2, $3,"
            " $4}, [$5];"
        ),
        NoneType,
        constraints="r,f,f,f,f,r,~{memory}",
        has_side_effect=True,
    ](address, sums[0], sums[1], sums[2], sums[3], barrier)


@always_inline
def send_word(address: UInt32, value: UInt32, barrier: UInt32):
    """Starts storing four bytes, likewise."""
    inlined_assembly[
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [$0], $1, [$2];",
        NoneType,
        constraints="r,r,r,~{memory}",
        has_side_effect=True,
    ](address, value, barrier)


@always_inline
def copy_bulk(
    address: UInt32,
    source: MutPointer[UInt8, MutUntrackedOrigin],
    num_bytes: UInt32,
    barrier: UInt32,
):
    """Starts copying contiguous bytes from global memory; the barrier counts them."""
    inlined_assembly[
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];",
        NoneType,
        constraints="r,l,r,r,~{memory}",
        has_side_effect=True,
    ](address, source, num_bytes, barrier)


@always_inline
def copy_to_peer(address: UInt32, source: UInt32, num_bytes: UInt32, barrier: UInt32):
    """Starts copying contiguous bytes of shared memory to a peer address; the barrier there counts
    them. `publish_stores` comes before."""
    inlined_assembly[
        (
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [$0], [$1],"
            " $2, [$3];"
        ),
        NoneType,
        constraints="r,r,r,r,~{memory}",
        has_side_effect=True,
    ](address, source, num_bytes, barrier)


@always_inline
def copy_box(address: UInt32, map: Int, byte: UInt32, row: UInt32, barrier: UInt32):
    """Starts copying a tile of mapped rows, by the address of their map; the barrier counts it.

    Bytes outside of the rows count, and are zero.
    """
    inlined_assembly[
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [$0],"
            " [$1, {$2, $3}], [$4];"
        ),
        NoneType,
        constraints="r,l,r,r,r,~{memory}",
        has_side_effect=True,
    ](address, map, byte, row, barrier)


@always_inline
def prefetch_map(map: Int):
    """Brings a tensor map to where copies look for it."""
    inlined_assembly[
        "prefetch.tensormap [$0];", NoneType, constraints="l,~{memory}", has_side_effect=True
    ](map)


@always_inline
def init_barrier(address: UInt32, arrivals: UInt32):
    """Makes a barrier object whose phase ends after so many arrivals."""
    inlined_assembly[
        "mbarrier.init.shared.b64 [$0], $1;",
        NoneType,
        constraints="r,r,~{memory}",
        has_side_effect=True,
    ](address, arrivals)


@always_inline
def arrive(address: UInt32):
    """Counts this thread's arrival; its earlier writes are visible to who waits."""
    inlined_assembly[
        "mbarrier.arrive.shared.b64 _, [$0];",
        NoneType,
        constraints="r,~{memory}",
        has_side_effect=True,
    ](address)


@always_inline
def arrive_when_copied(address: UInt32):
    """Arrives at a barrier as soon as the copies are there that this thread has started."""
    inlined_assembly[
        "cp.async.mbarrier.arrive.noinc.shared.b64 [$0];",
        NoneType,
        constraints="r,~{memory}",
        has_side_effect=True,
    ](address)


@always_inline
def arrive_expecting(address: UInt32, num_bytes: UInt32):
    """Counts this thread's arrival; the phase also waits for copies of so many bytes."""
    inlined_assembly[
        "mbarrier.arrive.expect_tx.shared.b64 _, [$0], $1;",
        NoneType,
        constraints="r,r,~{memory}",
        has_side_effect=True,
    ](address, num_bytes)


@always_inline
def publish_stores():
    """Makes this thread's stores to shared memory visible to tensor cores, which read past them."""
    inlined_assembly[
        "fence.proxy.async.shared::cta;",
        NoneType,
        constraints="~{memory}",
        has_side_effect=True,
    ]()


@always_inline
def wait_phase(address: UInt32, parity: UInt32):
    """Waits until the phase of the given parity has ended."""
    inlined_assembly[
        """{
        .reg .pred done;
        again:
        mbarrier.try_wait.parity.shared.b64 done, [$0], $1;
        @!done bra again;
        }""",
        NoneType,
        constraints="r,r,~{memory}",
        has_side_effect=True,
    ](address, parity)


@always_inline
def wait_at[num_threads: Int](barrier: UInt32):
    """Waits at a hardware barrier for that many threads, always the same ones."""
    inlined_assembly[
        "bar.sync $0, $1;", NoneType, constraints="r,n,~{memory}", has_side_effect=True
    ](barrier, Int32(num_threads))


@always_inline
def take_turn[first: Int, threads: Int](turn: UInt32):
    """Waits until the other one of two groups, 0 and 1, has passed the turn.

    Hardware barriers from `first` on are theirs; `threads` are those of both. The barrier's number is
    added up in the text: outside it would be kept in a register, and spilled.
    """
    inlined_assembly[
        "{ .reg .u32 t; add.u32 t, $0, $1; bar.sync t, $2; }",
        NoneType,
        constraints="r,n,n,~{memory}",
        has_side_effect=True,
    ](turn, Int32(first), Int32(threads))


@always_inline
def pass_turn[first: Int, threads: Int](turn: UInt32):
    """Lets the other one of two groups go on."""
    inlined_assembly[
        "{ .reg .u32 t; sub.u32 t, $1, $0; bar.arrive t, $2; }",
        NoneType,
        constraints="r,n,n,~{memory}",
        has_side_effect=True,
    ](turn, Int32(first + 1), Int32(threads))
