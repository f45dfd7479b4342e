"""Products with one of several matrices for each row, as every backend sees them.

    grouped    C[r] = left[r] @ right[e].T + bias[e]           rows sorted by their expert e
    experts    hidden[s] = gate(x[t] @ gate_up[e].T + bias[e])   for each slot s = (t, j)
               row[s] = hidden[s] @ down[e].T + bias[e]            of a token t, whose expert is e
               y[t] = sum over j of weight[t, j] * row[s]            in order, in float32

A slot whose expert's id is negative adds nothing. Like a `Problem`, all is known at run time and
checked by whoever makes it, but for what lies in memory: sizes and ids.
"""

from .numbers.gates import Gate
from .problem import Left, Result, Right

comptime NUMBERS = 4
"""Neighbours in a row that a lane of a GPU adds up: rows are made of blocks, so none is cut."""


@fieldwise_init
struct Experts(TrivialRegisterPassable):
    """Right sides of one shape, format and layout, and what is added to the rows of each."""

    var right: Right
    """The first."""
    var count: Int
    var codes_step: Int
    """Bytes from the codes of one to those of the next."""
    var scales_step: Int
    """Bytes from the scales of one to those of the next."""
    var bias: Int
    """Address, [count, n], contiguous."""
    var bias_dtype: Int
    """Position of its type in `FLOAT_TYPES`, or `NO_BIAS`."""

    @staticmethod
    def only(right: Right, result: Result) -> Self:
        """Returns the right side of a product, with the bias of its result."""
        return Self(right, 1, 0, 0, result.bias, result.bias_dtype)

    @always_inline
    def codes(self, expert: Int) -> Int:
        """Returns the address of an expert's codes."""
        return self.right.codes + expert * self.codes_step

    @always_inline
    def scales(self, expert: Int) -> Int:
        """Returns the address of an expert's scales."""
        return self.right.scales + expert * self.scales_step


@fieldwise_init
struct GroupedProblem(TrivialRegisterPassable):
    """Rows that are sorted by expert; those behind the last group are zero."""

    var left: Left
    """[m, k]."""
    var experts: Experts
    var sizes: Int
    """Address of the rows of each group, int32."""
    var values: Int
    """Address of C, [m, n], contiguous."""
    var dtype: Int
    """Position of its type in `FLOAT_TYPES`."""
    var m: Int
    var n: Int
    var k: Int


def most_tiles(rows: Int, groups: Int, tile_rows: Int) -> Int:
    """Returns the most tiles that rows of groups of any sizes make; some have no group."""
    return min(rows, (rows + (groups + 1) * (tile_rows - 1)) // tile_rows)


@fieldwise_init
struct Routing(TrivialRegisterPassable):
    """Which experts a token goes to, and what their results count."""

    var ids: Int
    """Address, [tokens, slots], contiguous."""
    var id_bytes: Int
    """Bytes of an id, 4 or 8."""
    var weights: Int
    """Address, [tokens, slots], contiguous."""
    var weights_dtype: Int
    """Position of their type in `FLOAT_TYPES`."""
    var tokens: Int
    var slots: Int
    """Of a token."""

    def count(self) -> Int:
        """Returns the slots of all tokens."""
        return self.tokens * self.slots


@fieldwise_init
struct ExpertsProblem(TrivialRegisterPassable):
    """A layer of experts: two products and a gate for each slot."""

    var left: Left
    """Floats, [tokens, width]; the hidden numbers become what these become."""
    var gate_up: Experts
    """[sums(), width] each: rows of gates and ups, or of ups alone."""
    var down: Experts
    """[width, inner] each."""
    var routing: Routing
    var gate: Gate
    var values: Int
    """Address of y, [tokens, width], contiguous."""
    var dtype: Int
    """Position of its type in `FLOAT_TYPES`."""
    var width: Int
    var inner: Int

    def sums(self) -> Int:
        """Returns the sums of a slot that become its hidden numbers."""
        return self.gate.sums(self.inner)

    def hidden_at(self, address: Int) -> Left:
        """Returns the left side of the second product: floats like the tokens, contiguous."""
        var left = self.left
        left.values = address
        left.row_stride = self.inner
        return left
