"""The products that gfx950 has kernels for: what Python calls them, and facts about them."""

from std.python import Python, PythonObject
from std.sys import get_defined_int

from ..cdna4.types import COLUMN_PAIRS, Formats, PAIRS, ProductTypes, has_expert_kernels, name_of
from ..numbers.formats import NO_FORMAT
from ..numbers.rounding import Rounding
from ..problem import ANY, Known, LeftKind, NO_BIAS
from .record import Records


def product_types(
    left: Int, right: Int, x: Int, rounding: Int, result: Int, bias: Int, are_columns: Bool
) -> ProductTypes:
    """Returns a kind of products by positions in the tables of formats, element types and rules.

    `NO_FORMAT` on the left keeps floats; activations of no type `x` are codes.
    """
    var floats = LeftKind.KEPT if left == NO_FORMAT else LeftKind.QUANTIZED
    var types = ProductTypes.of(
        Known(
            kind=floats.code if x >= 0 else LeftKind.ENCODED.code,
            dtype=x,
            left_format=left,
            rounding=rounding,
            right_format=right,
            layout=ANY,
            result_dtype=result,
            bias_dtype=bias,
        )
    )
    types.formats.are_columns = are_columns
    return types


def defined_types[right: StaticString = "RIGHT", bias: StaticString = "BIAS"]() -> ProductTypes:
    """Returns the kind that a module is compiled for, weights by two names: see `hip_product`."""
    comptime NONE = -1
    return product_types(
        left=get_defined_int["LEFT", NO_FORMAT](),
        right=get_defined_int[right, NONE](),
        x=get_defined_int["X", NONE](),
        rounding=get_defined_int["ROUNDING", Rounding.EVEN.code](),
        result=get_defined_int["OUT"](),
        bias=get_defined_int[bias, NO_BIAS](),
        are_columns=get_defined_int["COLUMNS", 0]() == 1,
    )


def pairs_on_gfx950() raises -> PythonObject:
    """Returns the formats of activations and weights that there are kernels for."""
    return _pairs([pair for pair in materialize[PAIRS]()])


def column_pairs_on_gfx950() raises -> PythonObject:
    """Returns those of codes that lie column by column on both sides."""
    return _pairs([pair for pair in materialize[COLUMN_PAIRS]()])


def expert_pairs_on_gfx950() raises -> PythonObject:
    """Returns those of products with one of several matrices for each row."""
    return _pairs([pair for pair in materialize[PAIRS]() if has_expert_kernels(pair)])


@no_inline
def _pairs(pairs: List[Formats]) raises -> PythonObject:
    """Returns pairs by the names of their formats."""
    var names = Records()
    for pair in pairs:
        names.add(Python.tuple(name_of(pair.left), name_of(pair.right)))
    return names.items
