"""Pieces, words and bytes of LDS beside loads that go straight there.

The compiler orders a plain access to LDS behind every load to LDS in flight.
These carry the scopes that say otherwise: they pass such loads, and whoever
uses them waits and meets at barriers himself.
"""

from max.gpu._utils import to_i64
from std.memory import AddressSpace, bitcast
from structured_kernels.amd_tile_io import _load_from_lds

comptime SharedBytes = MutPointer[BFloat16, MutUntrackedOrigin, address_space=AddressSpace.SHARED]
"""A place in LDS. The element type is what `_load_from_lds` insists on."""
comptime PIECE_BYTES = 16
"""What a lane moves at once."""
comptime Piece = SIMD[DType.uint32, PIECE_BYTES // 4]
"""A piece in registers."""
comptime _ASYNC_COPIES = __mlir_attr.`[#llvm.alias_scope<id= "amdgpu.AsyncCopies", domain=#llvm.alias_scope_domain<id = "amdgpu.AsyncOps">>]`
comptime _LOCAL_ACCESSES = __mlir_attr.`[#llvm.alias_scope<id= "amdgpu.LocalLoads", domain=#llvm.alias_scope_domain<id = "amdgpu.AsyncOps">>]`


@always_inline
def place_at(lds: SharedBytes, num_bytes: Int32) -> SharedBytes:
    """Returns the place that many bytes further."""
    return lds.unsafe_bitcast[UInt8]().unsafe_offset(Int(num_bytes)).unsafe_bitcast[BFloat16]()


@always_inline
def read_word(place: SharedBytes) -> UInt32:
    """Reads an aligned word."""
    var word = __mlir_op.`llvm.load`[
        _type=__mlir_type.i32,
        alignment=to_i64(Int64(4)),
        noalias_scopes=_ASYNC_COPIES,
        alias_scopes=_LOCAL_ACCESSES,
    ](__mlir_op.`builtin.unrealized_conversion_cast`[_type=__mlir_type.`!llvm.ptr<3>`](place))
    return UInt32(mlir_value=__mlir_op.`pop.cast_from_builtin`[_type=UInt32._mlir_type](word))


@always_inline
def write_byte(place: SharedBytes, value: UInt8):
    """Writes a byte."""
    __mlir_op.`llvm.store`[
        _type=None,
        alignment=to_i64(Int64(1)),
        noalias_scopes=_ASYNC_COPIES,
        alias_scopes=_LOCAL_ACCESSES,
    ](
        __mlir_op.`pop.cast_to_builtin`[_type=__mlir_type.i8](value._mlir_value),
        __mlir_op.`builtin.unrealized_conversion_cast`[_type=__mlir_type.`!llvm.ptr<3>`](place),
    )


@always_inline
def read_piece(place: SharedBytes) -> Piece:
    """Reads an aligned piece."""
    return bitcast[DType.uint32, PIECE_BYTES // 4](_load_from_lds[width=PIECE_BYTES // 2](place))


@always_inline
def write_piece(place: SharedBytes, piece: Piece):
    """Writes an aligned piece."""
    __mlir_op.`llvm.store`[
        _type=None,
        alignment=to_i64(Int64(PIECE_BYTES)),
        noalias_scopes=_ASYNC_COPIES,
        alias_scopes=_LOCAL_ACCESSES,
    ](
        __mlir_op.`pop.cast_to_builtin`[_type=__mlir_type.`vector<4 x i32>`](piece._mlir_value),
        __mlir_op.`builtin.unrealized_conversion_cast`[_type=__mlir_type.`!llvm.ptr<3>`](place),
    )
