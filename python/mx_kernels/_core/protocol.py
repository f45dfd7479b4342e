"""The call protocol: what extension modules are told, one tuple of integers for a call.

Arrays go by address, strides count elements, and dtypes, formats, roundings and layouts are places
in the extension's tables. A launcher appends what its device wants. Each operation has a record
here; `calls` and `products` write them, `bindings/protocol.mojo` reads the same names in the same
order, and whoever wants one of the integers asks for it by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

KEPT, QUANTIZED, ENCODED, INTEGERS = range(4)
"""What the left side of a product is: floats as they are, to quantize, codes, or to 16 bits."""
NO_CODE = -1
"""What stands for no format, and for the dtype of no bias."""


class Left(NamedTuple):
    """The left side of a product."""

    kind: int
    values: int
    scales: int
    dtype: int
    row_stride: int
    format: int
    rounding: int


class Right(NamedTuple):
    """The right side: weights."""

    codes: int
    scales: int
    format: int
    layout: int


class Result(NamedTuple):
    """What a product is written to, and what is added before."""

    values: int
    dtype: int
    bias: int
    bias_dtype: int


class Sizes(NamedTuple):
    """Of a product."""

    m: int
    n: int
    k: int


class Experts(NamedTuple):
    """The right sides of all experts, with what is added to their products."""

    codes: int
    scales: int
    format: int
    layout: int
    count: int
    codes_step: int
    scales_step: int
    bias: int
    bias_dtype: int


class Groups(NamedTuple):
    """The rows of each expert, and what their products are written to."""

    sizes: int
    values: int
    dtype: int
    m: int
    n: int
    k: int


class Routing(NamedTuple):
    """Which experts each token goes to, and what their results count."""

    ids: int
    id_bytes: int
    weights: int
    weights_dtype: int
    tokens: int
    slots: int


class Gate(NamedTuple):
    """What makes hidden numbers of gates and ups; its numbers as the bits of float32."""

    code: int
    interleaved: int
    limit: int
    alpha: int


class Tokens(NamedTuple):
    """What a layer of experts is written to, and its sizes."""

    values: int
    dtype: int
    width: int
    inner: int


class Quantize(NamedTuple):
    """Floats that become codes and scales."""

    values: int
    dtype: int
    row_stride: int
    rows: int
    k: int
    format: int
    rounding: int
    codes: int
    scales: int
    tensor_scales: int


class Norm(NamedTuple):
    """What becomes of floats first; numbers as the bits of float32, those of float64 as theirs."""

    is_centered: int
    rounds: int
    weight: int
    bias: int
    weights_are_float: int
    offset: int
    eps: int
    inv_k: int
    residual: int
    residual_stride: int
    stream: int


class Ups(NamedTuple):
    """Where ups lie that are not among the gates."""

    ups: int
    up_stride: int


class Rotation(NamedTuple):
    """How many elements are rotated together."""

    block: int


class Dequantize(NamedTuple):
    """Codes and scales that become floats."""

    codes: int
    scales: int
    format: int
    layout: int
    rows: int
    k: int
    values: int
    dtype: int


class Relayout(NamedTuple):
    """Codes and scales that move to another layout."""

    codes: int
    scales: int
    layout: int
    codes_out: int
    scales_out: int
    layout_out: int
    format: int
    rows: int
    k: int


class Record:
    """The integers of an operation: parts, one behind the other, with their names."""

    def __init__(self, **parts: type):
        self._parts = parts
        ends = list(accumulate(len(part._fields) for part in parts.values()))
        self._slices = [slice(*ends) for ends in zip([0, *ends], ends, strict=False)]
        self.names = [f"{name}.{field}" for name, part in parts.items() for field in part._fields]

    def at(self, name: str) -> int:
        """Returns where an integer stands: `at("left.values")`."""
        return self.names.index(name)

    def part(self, name: str) -> slice:
        """Returns where a part stands."""
        return self._slices[list(self._parts).index(name)]

    def split(self, call: Sequence[int]) -> list:
        """Returns the parts of a call, each as its own type."""
        pairs = zip(self._parts.values(), self._slices, strict=True)
        return [part._make(call[place]) for part, place in pairs]


MULTIPLY = Record(left=Left, right=Right, result=Result, sizes=Sizes)
MULTIPLY_GROUPED = Record(left=Left, experts=Experts, groups=Groups)
MULTIPLY_EXPERTS = Record(
    left=Left, gate_up=Experts, down=Experts, routing=Routing, gate=Gate, tokens=Tokens
)
RECORDS = {
    "multiply": MULTIPLY,
    "multiply_grouped": MULTIPLY_GROUPED,
    "multiply_experts": MULTIPLY_EXPERTS,
    "quantize": Record(call=Quantize),
    "norm_quantize": Record(call=Quantize, norm=Norm),
    "gate_quantize": Record(call=Quantize, gate=Gate, ups=Ups),
    "hadamard_quantize": Record(call=Quantize, rotation=Rotation),
    "dequantize": Record(call=Dequantize),
    "relayout": Record(call=Relayout),
}
"""The operations, by the names that extension modules give them."""
