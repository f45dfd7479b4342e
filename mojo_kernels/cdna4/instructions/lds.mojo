"""Tiles of pieces, words and bytes in LDS, accessed beside loads that go straight there.

The compiler orders a plain access to LDS behind every load to LDS in flight.
These carry the scopes that say otherwise: they pass such loads, and whoever
uses them waits and meets at barriers himself.
"""

from layout import Coord, TileTensor
from max.gpu._utils import to_i64
from std.memory import AddressSpace, stack_allocation

from ...tiles import SharedTile
from ..chip import PIECE_BYTES

comptime Lds = MutPointer[UInt8, MutUntrackedOrigin, address_space=AddressSpace.SHARED]
"""LDS from some byte on."""
comptime PIECE_WORDS = PIECE_BYTES // 4
"""Words of a piece."""
comptime Piece = SIMD[DType.uint32, PIECE_WORDS]
"""A piece in registers."""
comptime Sixes = SIMD[DType.uint32, 2 * PIECE_WORDS]
"""A block of six-bit codes, six words; two more do not matter."""
comptime _HALF_BYTES = PIECE_BYTES // 2
"""Bytes of half a piece."""
comptime SharedPieces[*sizes: Int] = SharedTile[DType.uint32, PIECE_WORDS, *sizes]
"""A tile of pieces."""
comptime SharedWords[*sizes: Int] = SharedTile[DType.uint32, 1, *sizes]
"""A tile of words."""
comptime SharedBytes[*sizes: Int] = SharedTile[DType.uint8, 1, *sizes]
"""A tile of bytes."""
comptime _ASYNC_COPIES = __mlir_attr.`[#llvm.alias_scope<id= "amdgpu.AsyncCopies", domain=#llvm.alias_scope_domain<id = "amdgpu.AsyncOps">>]`
comptime _LOCAL_ACCESSES = __mlir_attr.`[#llvm.alias_scope<id= "amdgpu.LocalLoads", domain=#llvm.alias_scope_domain<id = "amdgpu.AsyncOps">>]`


@always_inline
def allocate_lds[num_bytes: Int]() -> Lds:
    """Returns the LDS of a workgroup."""
    return stack_allocation[
        num_bytes, DType.uint8, alignment=PIECE_BYTES, address_space=AddressSpace.SHARED
    ]()


@always_inline
def tile_at[
    dtype: DType, width: Int, *sizes: Int
](lds: Lds, first_byte: Int32 = 0) -> SharedTile[dtype, width, *sizes]:
    """Returns the tile that begins `first_byte` bytes further."""
    var place = lds.unsafe_offset(Int(first_byte))
    return {place.unsafe_bitcast[SIMD[dtype, width]](), {}}


@always_inline
def pieces_at[*sizes: Int](lds: Lds, first_byte: Int32 = 0) -> SharedPieces[*sizes]:
    """Returns the pieces that begin `first_byte` bytes further."""
    return tile_at[DType.uint32, PIECE_WORDS, *sizes](lds, first_byte)


@always_inline
def words_at[*sizes: Int](lds: Lds, first_byte: Int32 = 0) -> SharedWords[*sizes]:
    """Returns the words that begin `first_byte` bytes further."""
    return tile_at[DType.uint32, 1, *sizes](lds, first_byte)


@always_inline
def bytes_at[*sizes: Int](lds: Lds, first_byte: Int32 = 0) -> SharedBytes[*sizes]:
    """Returns the bytes that begin `first_byte` bytes further."""
    return tile_at[DType.uint8, 1, *sizes](lds, first_byte)


@always_inline
def place_of(
    tile: TileTensor[_, _, MutUntrackedOrigin, address_space=AddressSpace.SHARED, ...], at: Coord
) -> Lds:
    """Returns where in LDS an element of a tile is."""
    var offset = tile.layout[linear_idx_type=DType.int32](at)
    return tile.ptr.unsafe_offset(Int(offset)).unsafe_bitcast[UInt8]()


@always_inline
def _llvm_pointer(place: Lds) -> __mlir_type.`!llvm.ptr<3>`:
    """Returns a place as LLVM's operations take it."""
    return __mlir_op.`builtin.unrealized_conversion_cast`[_type=__mlir_type.`!llvm.ptr<3>`](place)


@always_inline
def read_word(
    tile: TileTensor[DType.uint32, _, MutUntrackedOrigin, address_space=AddressSpace.SHARED, ...],
    at: Coord,
) -> UInt32:
    """Reads a word."""
    var word = __mlir_op.`llvm.load`[
        _type=__mlir_type.i32,
        alignment=to_i64(Int64(4)),
        noalias_scopes=_ASYNC_COPIES,
        alias_scopes=_LOCAL_ACCESSES,
    ](_llvm_pointer(place_of(tile, at)))
    return UInt32(mlir_value=__mlir_op.`pop.cast_from_builtin`[_type=UInt32._mlir_type](word))


@always_inline
def read_pair[alignment: Int = 8](place: Lds) -> SIMD[DType.uint32, 2]:
    """Reads two words at a multiple of 8 bytes, or of 4."""
    comptime Words = SIMD[DType.uint32, 2]
    var words = __mlir_op.`llvm.load`[
        _type=__mlir_type.`vector<2 x i32>`,
        alignment=to_i64(Int64(alignment)),
        noalias_scopes=_ASYNC_COPIES,
        alias_scopes=_LOCAL_ACCESSES,
    ](_llvm_pointer(place))
    return Words(mlir_value=__mlir_op.`pop.cast_from_builtin`[_type=Words._mlir_type](words))


@always_inline
def write_byte(
    tile: TileTensor[DType.uint8, _, MutUntrackedOrigin, address_space=AddressSpace.SHARED, ...],
    at: Coord,
    value: UInt8,
):
    """Writes a byte."""
    __mlir_op.`llvm.store`[
        _type=None,
        alignment=to_i64(Int64(1)),
        noalias_scopes=_ASYNC_COPIES,
        alias_scopes=_LOCAL_ACCESSES,
    ](
        __mlir_op.`pop.cast_to_builtin`[_type=__mlir_type.i8](value._mlir_value),
        _llvm_pointer(place_of(tile, at)),
    )


@always_inline
def write_word(
    tile: TileTensor[DType.uint32, _, MutUntrackedOrigin, address_space=AddressSpace.SHARED, ...],
    at: Coord,
    value: UInt32,
):
    """Writes a word."""
    __mlir_op.`llvm.store`[
        _type=None,
        alignment=to_i64(Int64(4)),
        noalias_scopes=_ASYNC_COPIES,
        alias_scopes=_LOCAL_ACCESSES,
    ](
        __mlir_op.`pop.cast_to_builtin`[_type=__mlir_type.i32](value._mlir_value),
        _llvm_pointer(place_of(tile, at)),
    )


@always_inline
def write_pair(place: Lds, words: SIMD[DType.uint32, 2]):
    """Writes two words to a multiple of 8 bytes."""
    __mlir_op.`llvm.store`[
        _type=None,
        alignment=to_i64(Int64(8)),
        noalias_scopes=_ASYNC_COPIES,
        alias_scopes=_LOCAL_ACCESSES,
    ](
        __mlir_op.`pop.cast_to_builtin`[_type=__mlir_type.`vector<2 x i32>`](words._mlir_value),
        _llvm_pointer(place),
    )


@always_inline
def read_piece(
    tile: TileTensor[DType.uint32, _, MutUntrackedOrigin, address_space=AddressSpace.SHARED, ...],
    at: Coord,
) -> Piece:
    """Reads a piece."""
    return read_piece(place_of(tile, at))


@always_inline
def read_piece[alignment: Int = PIECE_BYTES](place: Lds) -> Piece:
    """Reads a piece at a multiple of 16 bytes, or of 8."""
    var piece = __mlir_op.`llvm.load`[
        _type=__mlir_type.`vector<4 x i32>`,
        alignment=to_i64(Int64(alignment)),
        noalias_scopes=_ASYNC_COPIES,
        alias_scopes=_LOCAL_ACCESSES,
    ](_llvm_pointer(place))
    return Piece(mlir_value=__mlir_op.`pop.cast_from_builtin`[_type=Piece._mlir_type](piece))


@always_inline
def write_piece(
    tile: TileTensor[DType.uint32, _, MutUntrackedOrigin, address_space=AddressSpace.SHARED, ...],
    at: Coord,
    piece: Piece,
):
    """Writes a piece."""
    write_piece(place_of(tile, at), piece)


@always_inline
def write_piece[alignment: Int = PIECE_BYTES](place: Lds, piece: Piece):
    """Writes a piece to a multiple of 16 bytes, or of 8."""
    __mlir_op.`llvm.store`[
        _type=None,
        alignment=to_i64(Int64(alignment)),
        noalias_scopes=_ASYNC_COPIES,
        alias_scopes=_LOCAL_ACCESSES,
    ](
        __mlir_op.`pop.cast_to_builtin`[_type=__mlir_type.`vector<4 x i32>`](piece._mlir_value),
        _llvm_pointer(place),
    )


@always_inline
def read_sixes(place: Lds) -> Sixes:
    """Reads such a block from a multiple of 8 bytes."""
    var words = Sixes(0)
    words = words.insert[offset=0](read_piece[_HALF_BYTES](place))
    return words.insert[offset=PIECE_WORDS](read_pair(place.unsafe_offset(PIECE_BYTES)))


@always_inline
def write_sixes(place: Lds, words: Sixes):
    """Writes such a block to a multiple of 8 bytes."""
    write_piece[_HALF_BYTES](place, words.slice[PIECE_WORDS, offset=0]())
    write_pair(place.unsafe_offset(PIECE_BYTES), words.slice[2, offset=PIECE_WORDS]())
