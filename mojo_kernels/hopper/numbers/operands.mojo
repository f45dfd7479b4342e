"""Where the weights of a product lie that are bfloat16 numbers, and what is marked.

    workspace    rows of weights, 128 bytes of K a stage
                 marks of tiles of 32 rows of weights, a byte each, see `weights`

Activations are numbers where they are, and have no marks. A tile that is marked has an element that is
no bfloat16 number: its elements of C are computed in float64.
"""

from std.builtin.device_passable import DeviceTypeEncoder

from ...launch.queue import DevicePointer, device_pointer
from ...layouts import GRANULE_BYTES, PreshuffledCuda
from ...simt.arguments import Activations, Result, Weights
from ...simt.views import flat_of
from ..dense.operands import StagedOperands
from ..dense.stages import StagedRows
from ..dense.units import StageRows, Unit
from ..exact import TokenOctet, compute_marked
from ..host.gemm import Scaling
from ..host.workspace import marks_at
from ..layout import BLOCK, OPERANDS, TILE_ROWS
from ..mapped.operands import MARK, MappedOperands
from ..shapes import NUMBER_BYTES, ROW_BYTES
from .codes import put_numbers


@fieldwise_init
struct NumberRows(MappedOperands, StagedOperands, TrivialRegisterPassable):
    """Rows of weights one after the other, and their marks."""

    comptime device_type: AnyType = Self
    comptime TYPE: StaticString = "bf16"
    comptime SCALING = Scaling.NUMBERS
    comptime CODE_BITS = OPERANDS.element.bits
    comptime STAGE_CODES = ROW_BYTES // NUMBER_BYTES
    comptime GRANULES = 2
    comptime PUT_BYTES = 8 * NUMBER_BYTES
    comptime BLOCKS = Self.STAGE_CODES // BLOCK

    var right: StagedRows
    """The weights."""
    var right_marks: DevicePointer[DType.uint8]
    """The marks of weights, of tiles of 32 rows."""
    var num_weights: UInt32
    """Rows of weights."""

    @staticmethod
    def at(n: Int, k: Int, address: Int) -> Self:
        """Returns the weights of a product in a workspace."""
        var right = StagedRows.at(address, NUMBER_BYTES * k, n, 1)
        return Self(right, device_pointer[DType.uint8](address + marks_at(n, k)), UInt32(n))

    @always_inline
    def weights(self) -> StagedRows:
        return self.right

    @always_inline
    def num_steps(self) -> UInt32:
        return self.right.num_steps

    @always_inline
    def put[part: Int](self, unit: Unit[Self.GRANULES, Self.BLOCKS], rows: StageRows):
        comptime for i in range(Self.GRANULES):
            var scales = unit.scales[i * GRANULE_BYTES * 8 // Self.CODE_BITS // BLOCK]
            put_numbers[Self.GRANULES * part + i](unit.of_granule(i), scales, rows)

    @always_inline
    def scale(self, sum: Float32, of_token: Float32, of_weight: Float32) -> Float32:
        return sum

    @always_inline
    def token_place(self, row: UInt32) -> UInt32:
        return row

    @always_inline
    def token_factor(self, place: UInt32, step: UInt32) -> Float32:
        return 1

    @always_inline
    def column_place(self, column: UInt32) -> UInt32:
        return min(column, self.num_weights - 1)

    @always_inline
    def column_factor(self, place: UInt32, step: UInt32) -> Float32:
        return MARK if flat_of(self.right_marks)[Int(place) // TILE_ROWS] != 0 else 1

    @always_inline
    def has_tiles(self) -> Bool:
        return False

    @always_inline
    def loses_token(self, factor: Float32) -> Bool:
        return False

    @always_inline
    def loses_column(self, factor: Float32) -> Bool:
        return factor == MARK

    @always_inline
    def store_marked(
        self,
        a: Activations,
        w: Weights,
        result: Result,
        first_row: UInt32,
        first_column: UInt32,
        of_rows: UInt32,
        of_columns: UInt32,
    ):
        var tokens = TokenOctet(first_row, 1, result.rows)
        compute_marked[PreshuffledCuda](a, w, result, tokens, first_column, of_rows, of_columns)

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "NumberRows"
