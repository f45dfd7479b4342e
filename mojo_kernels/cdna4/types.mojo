"""What is compiled into a kernel of products beside its cut: formats and types.

The fields say the same as a `Problem`, at compile time:

    left side    floats of type `x`, quantized on the way by `rounding`, or kept, as the format
                 `KEPT` says; or codes, without `x`
    right side   codes; or floats of type `x` too, where both formats are that of such floats
    result       of type `out`, with a bias of type `bias` added, or none

`PAIRS` lists what there are kernels for; others fail when they are compiled.
"""

from std.sys import size_of

from ..layouts import Plain, PreshuffledCdna4, layout_position
from ..numbers.elements import Element
from ..numbers.floats import FLOAT_TYPES, float_code
from ..numbers.formats import FORMATS, Format, NO_FORMAT, WHOLE_ROW
from ..numbers.rounding import Rounding
from ..numbers.scales import Scale
from ..problem import Known, Left, LeftKind, NO_BIAS, Problem, Result, Right
from .chip import BLOCK, rows_at_once

comptime BFLOAT16 = Element(len(Element.NAMES), 16, 8, 7, 127, 127, 0x7F7F, 0x7F80, 0x7F81)
comptime KEPT = Format(NO_FORMAT, BFLOAT16, Scale.E8M0, 1, BLOCK)
"""Activations that stay floats, in the place of a format: codes are bfloat16, scales are unused."""
comptime FLOAT16 = Element(len(Element.NAMES) + 1, 16, 5, 10, 15, 15, 0x7BFF, 0x7C00, 0x7C01)
comptime BF16 = Format(NO_FORMAT, BFLOAT16, Scale.FLOAT32, 1, WHOLE_ROW)
"""Floats by floats, in the place of both formats: codes without a scale in the loop, nor behind."""
comptime F16 = Format(NO_FORMAT, FLOAT16, Scale.FLOAT32, 1, WHOLE_ROW)
"""The same of float16."""


def operand_code(element: Element) -> Optional[Int]:
    """Returns the matrix instruction's number for an element, none if it takes no such operand."""
    if element == Element.E4M3:
        return 0
    if element == Element.E5M2:
        return 1
    if element == Element.E2M3:
        return 2
    if element == Element.E3M2:
        return 3
    if element == Element.E2M1:
        return 4
    return None


def has_quantizers(format: Format) -> Bool:
    """Says whether there are quantizers to a format."""
    return Bool(operand_code(format.element)) and format.scale != Scale.E4M3


def name_of(format: Format) -> String:
    """Returns the name of a format, or of activations that stay floats."""
    if format == F16:
        return "f16"
    return "bf16" if format.code() == NO_FORMAT else format.name()


struct Formats(Equatable, TrivialRegisterPassable):
    """The formats of both operands of a product."""

    var left: Format
    var right: Format
    var are_columns: Bool
    """Whether codes of both lie column by column, [K, rows]; otherwise those of the left side lie
    row by row, and those of the right side are preshuffled."""

    def __init__(out self, left: Format, right: Format, *, are_columns: Bool = False):
        self.left = left
        self.right = right
        self.are_columns = are_columns

    comptime MXFP4 = Self(Format.MXFP4, Format.MXFP4)
    comptime BF16 = Self(BF16, BF16)
    comptime F16 = Self(F16, F16)

    @staticmethod
    def of(left: Int, right: Int) -> Self:
        """Returns the formats at positions of `FORMATS`; `NO_FORMAT` is that of kept floats, or on
        both sides that of bfloat16 by bfloat16."""
        return Self.BF16 if left == right == NO_FORMAT else Self(_format(left), _format(right))

    def are_floats(self) -> Bool:
        """Says whether floats are multiplied by floats."""
        return self == Self.BF16 or self == Self.F16

    def are_plain(self) -> Bool:
        """Says whether weights are plain, in rows or columns: only ping-pong kernels take them."""
        return self.are_columns or self.are_floats()

    def multiply_at_once(self) -> Bool:
        """Says whether a matrix instruction takes the shortest time: it knows no eight bits."""
        return self.left.element.bits < 8 and self.right.element.bits < 8

    def words(self) -> String:
        return String(name_of(self.left), " x ", name_of(self.right))


comptime PAIRS = [
    Formats.MXFP4,
    Formats(KEPT, Format.MXFP4),
    Formats(KEPT, Format.NVFP4),
    Formats(Format.MXFP8, Format.MXFP4),
    Formats(Format.MXFP8, Format.MXFP8),
    Formats(Format.MXFP8_E5M2, Format.MXFP4),
    Formats(Format.MXFP8_E5M2, Format.MXFP8_E5M2),
    Formats(Format.MXFP6, Format.MXFP4),
    Formats(Format.MXFP6, Format.MXFP6),
    Formats(Format.MXFP6_E3M2, Format.MXFP4),
    Formats(Format.MXFP6_E3M2, Format.MXFP6_E3M2),
    Formats(Format.FP8, Format.FP8),
    Formats(Format.FP8_E5M2, Format.FP8_E5M2),
    Formats(Format.FP8_BLOCK, Format.FP8_BLOCK_2D),
]
"""Formats of activations and of weights that there are kernels for."""
comptime COLUMN_PAIRS = [Formats(Format.FP8_BLOCK, Format.FP8_BLOCK_2D, are_columns=True)]
"""Those of codes that lie column by column on both sides."""


def supported_pairs() -> String:
    """Returns the list in words."""
    var words = String()
    for pair in materialize[PAIRS]():
        words += String(", " if words else "", pair.words())
    return words


def unsupported(formats: Formats) -> String:
    """Returns what to say to a pair without kernels."""
    return String(
        "no gfx950 kernels for activations x weights of ",
        formats.words(),
        ", only for ",
        supported_pairs(),
    )


def has_expert_kernels(formats: Formats) -> Bool:
    """Says the same of products with one of several matrices for each row."""
    return has_kernels(formats) and formats.left.scale == Scale.E8M0


def has_kernels(formats: Formats) -> Bool:
    """Says whether there are kernels for a pair."""
    comptime for i in range(len(PAIRS)):
        comptime pair = PAIRS[i]
        if formats == pair:
            return True
    comptime for i in range(len(COLUMN_PAIRS)):
        comptime pair = COLUMN_PAIRS[i]
        if formats == pair:
            return True
    return formats.are_floats()


@fieldwise_init
struct ProductTypes(Copyable, ImplicitlyCopyable, Movable):
    """What a kernel is compiled for."""

    var formats: Formats
    var x: Optional[DType]
    """The type of activations that are floats; none for codes."""
    var rounding: Rounding
    var out: DType
    var bias: Optional[DType]

    @staticmethod
    def of(known: Known) -> Self:
        """Returns what is known of a problem; all of it but its layout must be."""
        var formats = Formats.of(known.left_format, known.right_format)
        if formats.are_floats() and _float_type(known.dtype).value() == DType.float16:
            formats = Formats.F16
        var is_encoded = known.kind == LeftKind.ENCODED.code
        return Self(
            formats,
            Optional[DType](None) if is_encoded else _float_type(known.dtype),
            Rounding(known.rounding),
            _float_type(known.result_dtype).value(),
            _float_type(known.bias_dtype),
        )

    def kind(self) -> LeftKind:
        if self.formats.left.code() == NO_FORMAT:
            return LeftKind.KEPT
        return LeftKind.QUANTIZED if self.x else LeftKind.ENCODED

    def quantizes_first(self) -> Bool:
        """Says whether a launch of its own quantizes floats always: float scales take all of K."""
        return self.kind() == LeftKind.QUANTIZED and self.formats.left.scale == Scale.FLOAT32

    def encoded(self) -> Self:
        """Returns the types of the product of what a launch of its own makes of floats."""
        var types = self
        types.x = None
        return types

    def of_launch(self) -> Self:
        """Returns the types of the product itself, if a launch before it always quantizes."""
        return self.encoded() if self.quantizes_first() else self

    def floats(self) -> DType:
        """Returns the type of activations in memory, bytes for codes."""
        return self.x.or_else(DType.uint8)

    def row_bytes(self, k: Int) -> Int:
        """Returns the bytes of a row of activations as they come."""
        if self.x:
            return k * float_bytes(self.x.value())
        return self.formats.left.packed_bytes(k)

    def rows_at_once(self, n: Int, k: Int) -> Int:
        """Returns the rows of activations that a launch takes: bytes of a tensor are counted."""
        return rows_at_once(max(self.row_bytes(k), n * float_bytes(self.out)))

    def match(self, problem: Problem) -> Bool:
        """Says whether a problem is of these formats and types, and its weights in their layout."""
        var left, result = problem.left, problem.result
        return (
            left.kind == self.kind()
            and left.format == self.formats.left.code()
            and (not self.x or left.dtype == float_code(self.x.value()))
            and (self.kind() != LeftKind.QUANTIZED or left.rounding == self.rounding)
            and problem.right.format == self.formats.right.code()
            and problem.right.layout == self.right_layout()
            and self.has_layout(problem.k)
            and result.dtype == float_code(self.out)
            and result.bias_dtype == (float_code(self.bias.value()) if self.bias else NO_BIAS)
        )

    def has_layout(self, k: Int) -> Bool:
        """Says whether rows of weights are whole pieces: of six-bit codes K is a multiple of 64."""
        return self.formats.right.packed_bytes(k) % PreshuffledCdna4.BYTE_MULTIPLE == 0

    def right_layout(self) -> Int:
        """Returns the layout of weights."""
        return _PLAIN if self.formats.are_plain() else _PRESHUFFLED

    def problem(self, m: Int, n: Int, k: Int) -> Problem:
        """Returns a problem of these types, its addresses numbers by which to recognise them."""
        var left = Left.encoded(A, A_SCALES, self.formats.left.code())
        if self.x:
            var format = self.formats.left.code()
            left = Left.quantized(A, float_code(self.x.value()), k, format, self.rounding)
        if self.kind() == LeftKind.KEPT:
            left = Left.kept(A, float_code(self.x.value()), k)
        var right = Right(W_CODES, W_SCALES, self.formats.right.code(), self.right_layout())
        var bias = float_code(self.bias.value()) if self.bias else NO_BIAS
        return Problem(left, right, Result(C, float_code(self.out), BIAS, bias), m, n, k)


comptime ADDRESSES = [
    "none",
    "a",
    "a_scales",
    "w_codes",
    "w_scales",
    "c",
    "bias",
    "workspace",
    "codes",
    "scales",
]
"""Names of the numbers that stand for addresses where nothing runs."""
comptime A = 1
comptime A_SCALES = 2
comptime W_CODES = 3
comptime W_SCALES = 4
comptime C = 5
comptime BIAS = 6
comptime WORKSPACE = 7
comptime CODES = 8
comptime SCALES = 9


def _format(code: Int) -> Format:
    """Returns the format at a position of `FORMATS`, the one of kept floats for `NO_FORMAT`."""
    if code == NO_FORMAT:
        return KEPT
    comptime for i in range(len(FORMATS)):
        comptime format = FORMATS[i]
        if code == i:
            return format
    return Format.MXFP4


def _float_type(code: Int) -> Optional[DType]:
    """Returns the type at a position of `FLOAT_TYPES`, none for other positions."""
    comptime for i in range(len(FLOAT_TYPES)):
        comptime dtype = FLOAT_TYPES[i]
        if code == i:
            return dtype
    return None


def float_bytes(dtype: DType) -> Int:
    """Returns the bytes of a float."""
    comptime for i in range(len(FLOAT_TYPES)):
        comptime known = FLOAT_TYPES[i]
        if dtype == known:
            return size_of[known]()
    return 0


comptime _PRESHUFFLED = layout_position(PreshuffledCdna4.NAME)
comptime _PLAIN = layout_position(Plain.NAME)
