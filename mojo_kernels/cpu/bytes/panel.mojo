"""Quantized activations times a panel of weights: an integer dot product a block.

For every block the loop takes the integer dot product of each row with each column,
converts it once, and adds it to a float32 sum, blocks in order:

    sum = float32(dot) * ((a_scale * a_unit) * (b_scale * b_unit)) + sum, rounded once

The product of the scales takes one integer addition of exponents. That is the whole
arithmetic of C. Beside E4M3 scales a block is two dot products of sixteen, scales are multiplied as
floats, exactly, and the product of both tensor scales multiplies the sum over K.
"""

from layout import Coord
from std.collections import Array
from std.memory import bitcast
from std.sys._assembly import inlined_assembly
from std.sys.intrinsics import llvm_intrinsic

from ...layouts import OperandShape
from ...numbers.decode import decode
from ...numbers.elements import Element
from ...numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS
from ...numbers.formats import Format
from ...numbers.scales import E8M0_BIAS, E8M0_NAN, FLOAT32_NAN, Scale, decode_scale
from ...operands import Tiles, on_stack
from ..block_order import GROUP_TILES, KEEPS_SUMS, RowGroups
from ..e4m3_scales import E4M3Stretch
from ..encode import DIGIT_BITS
from ..ranges import RowRange
from ..panel import DecodedStretch, GroupSums, PANEL_TILES, PanelPart, PanelProduct, WeightPanel
from ..vectors import BLOCK, LANES, STEP_BYTES, Sums, Words, add_exact_product
from ..weights import WeightTiles, float64_scales, infinite_or_one
from ..window import ScaleWindow
from .activations import DOUBLED, ExpandedRows, FEW_ROWS, HALVED_DOUBLINGS
from .activations import LIMITS, STRETCH_BLOCKS
from .dot import ActivationBytes, BlockDot, Lanes, Reach, WeightBytes
from .integers import (
    ScaleKinds,
    ScaleProduct,
    VECTORS,
    largest_integer,
    place_of,
    unit_shift,
    weight_bytes,
)


trait ByteSource(TrivialRegisterPassable):
    """The weights of a panel as offset bytes, block by block."""

    comptime Codes: TrivialRegisterPassable
    """What stands for the codes of a tile in one block."""
    comptime IS_STORED: Bool
    """Whether the bytes are in memory."""

    def codes(self, tile: Int, block: Int) -> Self.Codes:
        """Returns the codes of tile `tile` of the panel."""
        ...

    def bytes[vector: Int](self, codes: Self.Codes) -> WeightBytes:
        """Returns one vector of them."""
        ...

    def unit_scales[part: Int](self, tile: Int, block: Int) -> Words:
        """Returns the float32 bits of the scales of tile `tile`, times the unit, in a part."""
        ...


@fieldwise_init
struct _DirectBytes[Weights: WeightTiles, scales: ScaleKinds, takes_bytes: Bool = False](
    ByteSource
):
    """Weights that are decoded in registers each time they are loaded."""

    comptime Codes = Self.Weights.Codes
    comptime IS_STORED = False

    var panel: WeightPanel[Self.Weights]
    var e4m3: _E4M3Scales[Self.scales]
    """Of formats that have such."""

    @always_inline
    def codes(self, tile: Int, block: Int) -> Self.Codes:
        return self.panel.codes(tile, block)

    @always_inline
    def bytes[vector: Int](self, codes: Self.Codes) -> WeightBytes:
        return weight_bytes[vector](self.panel.tiles, codes)

    @always_inline
    def unit_scales[part: Int](self, tile: Int, block: Int) -> Words:
        comptime if Self.Weights.format.scale == Scale.E4M3:
            comptime if Self.takes_bytes:
                return self.e4m3.halved(tile, block, part)
            else:
                return self.e4m3.of(tile, block, part)
        else:
            return self.panel.scale_bits[unit_shift[Self.Weights.format.element]()](tile, block)


comptime SCALES_BLOCKS = 2 * STRETCH_BLOCKS
"""Blocks of K whose E4M3 scales are decoded at a time for one group of rows."""
comptime _E4M3Scales[scales: ScaleKinds] = E4M3Stretch[
    SCALES_BLOCKS,
    -unit_shift[Element.E2M1](),
    scales.product() == ScaleProduct.LOOKED_UP,
    scales.product() == ScaleProduct.BESIDE_POWERS,
]
"""E4M3 scales times the unit."""


@fieldwise_init
struct DecodedBytes[kinds: ScaleKinds](ByteSource, DecodedStretch):
    """A stretch of a panel that was decoded beforehand.

    stored    [block and tile, vector, 64]
    scales    [block and tile, 16]
    """

    comptime Codes = Int
    """The number of the tile, counted block by block."""
    comptime IS_STORED = True
    comptime TILES = STRETCH_BLOCKS * PANEL_TILES

    var stored: Tiles[DType.uint8, Self.TILES, VECTORS, STEP_BYTES]
    """The unsigned weights."""
    var scales: Tiles[DType.uint32, Self.TILES, LANES]
    """The float32 bits of the scales times the unit."""
    var e4m3: _E4M3Scales[Self.kinds]
    """The same of formats that have such."""

    @staticmethod
    @always_inline
    def on_stack() -> Self:
        """Returns memory for a stretch that lives as long as the calling function."""
        return Self(
            on_stack[DType.uint8, Self.TILES, VECTORS, STEP_BYTES](),
            on_stack[DType.uint32, Self.TILES, LANES](),
            _E4M3Scales[Self.kinds].on_stack(),
        )

    def decode[Weights: WeightTiles](self, panel: WeightPanel[Weights], num_blocks: Int):
        """Decodes the first `num_blocks` blocks of `panel`."""
        var source = _DirectBytes[scales=Self.kinds](panel, self.e4m3)
        self.e4m3.decode(panel, 0, PANEL_TILES, num_blocks)
        for block in range(num_blocks):
            comptime for tile in range(PANEL_TILES):
                var codes = source.codes(tile, block)
                var at = self.codes(tile, block)
                comptime for vector in range(VECTORS):
                    self.stored.store(Coord(at, vector, 0), source.bytes[vector](codes))
                comptime if Weights.format.scale != Scale.E4M3:
                    self.scales.store(Coord(at, 0), source.unit_scales[0](tile, block))

    @always_inline
    def codes(self, tile: Int, block: Int) -> Int:
        """Returns the number of tile `tile`."""
        return block * PANEL_TILES + tile

    @always_inline
    def bytes[vector: Int](self, codes: Int) -> WeightBytes:
        """Returns one vector."""
        return self.stored.load[width=STEP_BYTES](Coord(codes, vector, 0))

    @always_inline
    def unit_scales[part: Int](self, tile: Int, block: Int) -> Words:
        """Returns the float32 bits of the scales of tile `tile`, times the unit, in a part."""
        comptime if Self.kinds.right:
            return self.e4m3.of(tile, block, part)
        else:
            return self.scales.load[width=LANES](Coord(self.codes(tile, block), 0))


@always_inline
def _broadcast_run(a: ExpandedRows, offset: Int) -> ActivationBytes:
    """Repeats four neighbouring activation bytes in every lane."""
    var run = bitcast[DType.int32, 1](a.values.load[width=4](Coord(offset)))
    return bitcast[DType.int8, STEP_BYTES](Lanes(run[0]))


def _add_part[
    reach: Reach,
    scales: ScaleKinds,
    digits: Int,
    num_rows: Int,
    num_tiles: Int,
    Source: ByteSource,
    product: ScaleProduct = scales.product(),
](a: ExpandedRows, part: PanelPart, first_tile: Int, source: Source):
    """Adds a part to the sums of its group, for tiles from `first_tile` on.

    The part starts at block 0 of the source.
    """
    comptime NUM_SUMS = num_rows * num_tiles
    var total = GroupSums[num_rows, num_tiles, KEEPS_SUMS](part, first_tile)
    var first_index = a.order().of_group(part.group, part.first_block)
    for block in range(part.num_blocks):
        total.begin_block()
        var index = first_index + block * num_rows
        var codes = Array[Source.Codes, num_tiles](uninitialized=True)
        comptime for tile in range(num_tiles):
            codes[tile] = source.codes(first_tile + tile, block)
        comptime PARTS = scales.per_block()
        comptime for step in range(digits * PARTS):
            comptime digit, k_part = divmod(step, PARTS)
            comptime if digit > 0 and Source.IS_STORED:
                # Vectors that stay in registers for the next digit would be spilled.
                inlined_assembly["", NoneType, constraints="~{memory}", has_side_effect=True]()
            var dots = Array[BlockDot[reach].Accumulator, NUM_SUMS](uninitialized=True)
            comptime for row in range(num_rows):
                var at = ((index + row) * digits + digit) * PARTS + k_part
                var start = BlockDot[reach].start(a.corrections.load[width=1](Coord(at)))
                comptime for tile in range(num_tiles):
                    dots[row * num_tiles + tile] = start

            comptime for vector in range(
                k_part * VECTORS // PARTS, (k_part + 1) * VECTORS // PARTS
            ):
                var weights = Array[WeightBytes, num_tiles](uninitialized=True)
                comptime for tile in range(num_tiles):
                    weights[tile] = source.bytes[vector](codes[tile])
                comptime for row in range(num_rows):
                    comptime in_block = (row * digits + digit) * BLOCK + place_of(vector)
                    var run = _broadcast_run(a, index * digits * BLOCK + in_block)
                    comptime for tile in range(num_tiles):
                        comptime i = row * num_tiles + tile
                        dots[i] = BlockDot[reach].step(dots[i], weights[tile], run)

            comptime for tile in range(num_tiles):
                var unit_scales = source.unit_scales[k_part](first_tile + tile, block)
                comptime for row in range(num_rows):
                    comptime i = row * num_tiles + tile
                    var at = ((index + row) * digits + digit) * PARTS + k_part
                    var of_row = a.exponents.load[width=1](Coord(at))
                    var scale = _product_of_scales[product](a, unit_scales, of_row)
                    var dot = BlockDot[reach].finish(dots[i]).cast[DType.float32]()
                    total.put[i](add_exact_product(dot, scale, total.get[i]()))
    total.store()


@always_inline
def _product_of_scales[
    product: ScaleProduct
](a: ExpandedRows, of_columns: Words, of_row: UInt32) -> Sums:
    """Returns scales of columns times that of a row."""
    comptime if product == ScaleProduct.LOOKED_UP:
        var table = a.tables.load[width=LANES](Coord(Int(of_row)))
        var found = llvm_intrinsic["llvm.x86.avx512.permvar.si.512", Words, has_side_effect=False](
            table, of_columns
        )
        return bitcast[DType.float32, LANES](of_columns + found)
    elif product == ScaleProduct.BESIDE_BYTES:
        comptime UNIT = Float32(1) / Float32(1 << unit_shift[Element.E2M1]())
        var factor = bitcast[DType.float32](of_row) * (UNIT / DOUBLED)
        return bitcast[DType.float32, LANES](of_columns) * factor
    elif product == ScaleProduct.BESIDE_POWERS:
        comptime ONE = UInt32((F32_EXPONENT_BIAS - HALVED_DOUBLINGS) << F32_MANTISSA_BITS)
        return bitcast[DType.float32, LANES](of_columns) * bitcast[DType.float32](of_row + ONE)
    elif product != ScaleProduct.OF_EXPONENTS:
        return bitcast[DType.float32, LANES](of_columns) * bitcast[DType.float32](of_row)
    else:
        return bitcast[DType.float32, LANES](of_columns + Words(of_row))


comptime E4M3_WINDOW = ScaleWindow(
    E8M0_BIAS + 1 + Format.NVFP4.unit_exponent(), E8M0_BIAS + 1 + Element.E4M3.bound_exponent() - 1
)
"""The window of E4M3 scales times the unit of E2M1."""
comptime ONE_WINDOW = ScaleWindow(E8M0_BIAS, E8M0_BIAS)
"""The window of a factor of one."""


def _weight[digits: Int, digit: Int]() -> Float64:
    """Returns what a digit counts, high ones first."""
    return Float64(1 << ((digits - 1 - digit) * DIGIT_BITS))


@fieldwise_init
struct ByteProduct[reach: Reach, scales: ScaleKinds, digits: Int](PanelProduct):
    """Activations as integers."""

    comptime LIMITS = LIMITS
    """How many rows are multiplied together."""
    comptime STRETCH_BLOCKS = STRETCH_BLOCKS
    """Blocks of K that are decoded at a time."""
    comptime Decoded = DecodedBytes[Self.scales]
    """Where a stretch of weights is decoded to."""
    comptime Scales = _E4M3Scales[Self.scales]
    """Where E4M3 scales are decoded to."""
    comptime SCALES_BLOCKS = SCALES_BLOCKS
    """Blocks of K whose scales that takes."""
    comptime TAKES_E4M3_IN_REGISTERS = True
    """Scales beside them, codes as those of MXFP4."""
    comptime HAS_ROW_FACTORS = Self.scales.left
    """Tensor scales of the activations."""
    comptime HAS_COLUMN_FACTORS = Self.scales.right
    """Those of the weights."""

    var a: ExpandedRows
    """The activations, [M, k]."""

    @always_inline
    def shape(self) -> OperandShape:
        """Returns M and k."""
        return self.a.shape

    @always_inline
    def of_range(self, rows: RowRange) -> Self:
        """Returns a part of the rows."""
        return Self(self.a.of_range(rows))

    @always_inline
    def groups(self) -> RowGroups:
        """Returns how the rows are cut."""
        return self.a.groups

    @always_inline
    def row_bytes(self) -> Int:
        """Returns the bytes that a row of activations takes."""
        return self.a.shape.k * Self.digits

    @always_inline
    def add[
        num_rows: Int, Weights: WeightTiles
    ](self, part: PanelPart, tile: Int, panel: WeightPanel[Weights], e4m3: Self.Scales):
        """Adds a part for one tile of the panel, decoding it in registers."""
        comptime if Self.scales.product() == ScaleProduct.LOOKED_UP and num_rows <= FEW_ROWS:
            if e4m3.are_regular.load[width=1](Coord(0)):
                self._add[num_rows, True, ScaleProduct.OF_BYTES](part, tile, panel, e4m3)
            else:
                self._add[num_rows, False, ScaleProduct.BESIDE_BYTES](part, tile, panel, e4m3)
        elif Self.scales.product() == ScaleProduct.BESIDE_POWERS:
            if e4m3.are_regular.load[width=1](Coord(0)):
                self._add[num_rows, True, ScaleProduct.OF_EXPONENTS](part, tile, panel, e4m3)
            else:
                self._add[num_rows, False, ScaleProduct.BESIDE_POWERS](part, tile, panel, e4m3)
        else:
            self._add[num_rows, False, Self.scales.product()](part, tile, panel, e4m3)

    @always_inline
    def _add[
        num_rows: Int, takes_bytes: Bool, product: ScaleProduct, Weights: WeightTiles
    ](self, part: PanelPart, tile: Int, panel: WeightPanel[Weights], e4m3: Self.Scales):
        var source = _DirectBytes[scales=Self.scales, takes_bytes=takes_bytes](panel, e4m3)
        _add_part[Self.reach, Self.scales, Self.digits, num_rows, 1, product=product](
            self.a, part, tile, source
        )

    @always_inline
    def add_decoded[num_rows: Int](self, part: PanelPart, decoded: Self.Decoded):
        """Adds a part for all tiles of a panel."""
        comptime if Self.scales.product() == ScaleProduct.BESIDE_POWERS:
            if decoded.e4m3.are_regular.load[width=1](Coord(0)):
                return self._add_all[num_rows, ScaleProduct.OF_EXPONENTS](part, decoded)
        self._add_all[num_rows, Self.scales.product()](part, decoded)

    @always_inline
    def _add_all[
        num_rows: Int, product: ScaleProduct
    ](self, part: PanelPart, decoded: Self.Decoded):
        for tile in range(0, PANEL_TILES, GROUP_TILES):
            _add_part[Self.reach, Self.scales, Self.digits, num_rows, GROUP_TILES, product=product](
                self.a, part, tile, decoded
            )

    def window(self, first_row: Int, num_rows: Int) -> ScaleWindow:
        """Returns the scale window of some rows."""
        return self.a.windows.of(first_row, num_rows)

    @always_inline
    def takes_bytes(self) -> Bool:
        """Says whether regular scales need not be words."""
        comptime if Self.scales.product() == ScaleProduct.BESIDE_POWERS:
            return True
        elif Self.scales.product() == ScaleProduct.LOOKED_UP:
            return self.a.takes_bytes()
        else:
            return False

    @always_inline
    def row_factor(self, row: Int) -> Float32:
        """Returns the tensor scale of a row."""
        comptime if Self.scales.left:
            return self.a.tensor_scales.load[width=1](Coord(row))
        else:
            return 1

    @staticmethod
    def is_regular[format: Format](rows: ScaleWindow, weights: ScaleWindow) -> Bool:
        """Says whether the scales times their units, their products and all sums are regular
        float32.

        A block's sum of products of integers is below 2**BLOCK_BITS. E4M3 scales are regular, and
        windows are those of the tensor scales beside them.
        """
        comptime BLOCK_BITS = 20 + (Self.digits - 1) * DIGIT_BITS
        comptime NUM_BLOCKS_BITS = 32
        comptime HALVINGS = unit_shift[format.element]() - 1
        var halves = weights
        halves.low -= HALVINGS
        if halves.high < E8M0_NAN:
            halves.high -= HALVINGS
        comptime SUM_BITS = BLOCK_BITS + NUM_BLOCKS_BITS
        comptime if not Self.scales.any():
            return rows.multiplies_regularly[SUM_BITS](halves)
        var of_rows = E4M3_WINDOW if Self.scales.left else rows
        var of_columns = E4M3_WINDOW if Self.scales.right else halves
        if not of_rows.multiplies_regularly[SUM_BITS](of_columns):
            return False
        # The tensor scales, their product, and C.
        var row = rows if Self.scales.left else ONE_WINDOW
        var column = weights if Self.scales.right else ONE_WINDOW
        comptime TWICE_UNIT, TWICE_BIAS = 2 * (E8M0_BIAS + 1), 2 * E8M0_BIAS
        var low = row.low + column.low - TWICE_BIAS
        var high = row.high + column.high - TWICE_BIAS
        var sums_low = of_rows.low + of_columns.low - TWICE_UNIT
        var sums_high = of_rows.high + of_columns.high - TWICE_UNIT + SUM_BITS
        return (
            max(row.high, column.high) < E8M0_NAN
            and min(low, low + sums_low) >= 1 - F32_EXPONENT_BIAS
            and max(high, high + sums_high) <= F32_EXPONENT_BIAS
        )

    def sum_in_float64[Weights: WeightTiles](self, row: Int, tiles: Weights, tile: Int) -> Sums:
        """Returns the sums of one row and one tile, for scales that float32 cannot multiply.

        Products of scales are exact in float64, and a NaN scale makes its sums NaN.
        """
        comptime if Self.scales.any():
            return self._scaled_sum_in_float64(row, tiles, tile)
        comptime RIGHT_SHIFT = unit_shift[Weights.format.element]()
        var units = Float64(1) / Float64(1 << (self.a.unit_shift + RIGHT_SHIFT))
        var total = SIMD[DType.float64, LANES](0)
        for block in range(self.a.shape.k // BLOCK):
            var codes = tiles.codes(tile, block)
            var b_scales = decode_scale(tiles.scales(tile, block).cast[DType.uint8]())
            comptime for digit in range(Self.digits):
                var at = self._place(row, block, digit)
                var dots = BlockDot[Self.reach].start(self.a.corrections.load[width=1](Coord(at)))
                comptime for vector in range(VECTORS):
                    dots = BlockDot[Self.reach].step(
                        dots,
                        weight_bytes[vector](tiles, codes),
                        _broadcast_run(self.a, at * BLOCK + place_of(vector)),
                    )
                var a_scale = decode_scale[1](self.a.scales.load[width=1](Coord(at)))
                var values = BlockDot[Self.reach].finish(dots).cast[DType.float64]() * units
                total += values * (b_scales * a_scale) * _weight[Self.digits, digit]()
        return total.cast[DType.float32]()

    def _scaled_sum_in_float64[
        Weights: WeightTiles
    ](self, row: Int, tiles: Weights, tile: Int) -> Sums:
        """Returns the same where one side has E4M3 scales.

        An infinite tensor scale multiplies each element: products of both signs make NaN.
        """
        comptime F64 = SIMD[DType.float64, LANES]
        comptime NAN = Sums(bitcast[DType.float32](UInt32(FLOAT32_NAN)))
        comptime PARTS = Self.scales.per_block()
        comptime UNIT = Float64(1) / Float64(1 << unit_shift[Weights.format.element]())
        comptime OFFSET = Float64(largest_integer[Weights.format.element]())
        var total = F64(0)
        var row_scale, column_scales = self.row_factor(row).cast[DType.float64](), F64(1)
        comptime if Self.scales.right:
            column_scales = float64_scales[Weights.format.scale](tiles.scales(tile, 0))
        for block in range(self.a.shape.k // BLOCK):
            var codes = tiles.codes(tile, block)
            comptime for step in range(Self.digits * PARTS):
                comptime digit, part = divmod(step, PARTS)
                var at = self._place(row, block, digit)
                var values = F64(0)
                comptime for vector in range(
                    part * VECTORS // PARTS, (part + 1) * VECTORS // PARTS
                ):
                    var words = bitcast[DType.uint32, LANES](weight_bytes[vector](tiles, codes))
                    for byte in range(4):
                        var b = ((words >> UInt32(8 * byte)) & 0xFF).cast[DType.float64]() - OFFSET
                        var place = at * BLOCK + place_of(vector) + byte
                        var a = self.a.values.load[width=1](Coord(place)).cast[DType.float64]()
                        values += (
                            b * infinite_or_one(column_scales) * (a * infinite_or_one(row_scale))
                        )
                var b_scales: F64
                comptime if Self.scales.right:
                    var words = tiles.e4m3_scales(tile, block) >> UInt32(8 * part)
                    b_scales = decode[Element.E4M3](words).cast[DType.float64]()
                else:
                    b_scales = decode_scale(tiles.scales(tile, block).cast[DType.uint8]())
                var a_scale = self._unit_scale(at, part) * _weight[Self.digits, digit]()
                total += values * UNIT * (b_scales * a_scale)
        var sums = (total * column_scales * row_scale).cast[DType.float32]()
        return sums.eq(sums).select(sums, NAN)

    @always_inline
    def _place(self, row: Int, block: Int, digit: Int) -> Int:
        """Returns where a digit of a block is."""
        return self.a.order().index(row, block) * Self.digits + digit

    def _unit_scale(self, index: Int, part: Int) -> Float64:
        """Returns the scale of a block, or a part of it, times the unit of the integers."""
        comptime if Self.scales.left:
            var at = index * Self.scales.per_block() + part
            return self.a.scale_of[Element.E2M1, Self.scales](at).cast[DType.float64]()
        else:
            var unit = Float64(1) / Float64(1 << self.a.unit_shift)
            return decode_scale[1](self.a.scales.load[width=1](Coord(index))) * unit
