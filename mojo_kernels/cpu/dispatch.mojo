"""Which kernel of the CPU computes a product: the first of the list that supports it.

    bytes     MXFP4, MXFP6, NVFP4 and MXINT8, with each other
    floats    everything else, and slower
    digits    16-bit integers, two bytes each, with what `bytes` takes: a part of its own to compile
"""

from std.sys import get_defined_int

from ..problem import ANY, Known, Left, LeftKind, Problem, Right, may_be
from .bytes import kernel as bytes
from .floats import kernel as floats
from .limits import BYTES, FLOATS
from .ranges import RangedProblem, Ranges
from .scratch import Scratch
from .threads import Team


comptime NO_KERNEL = 0
comptime DIGITS = 3
comptime KERNEL = get_defined_int["KERNEL", ANY]()
"""The only kernel that a module has; see `bindings.cpu`."""


def kernel_of(left: Left, right: Right) -> Int:
    """Returns which kernel computes products of these formats."""
    if bytes.supports_digits(left, right):
        return DIGITS
    return BYTES if bytes.supports(left, right) else FLOATS


def multiply[known: Known, T: Team](problem: Problem, team: T) raises:
    """Computes a problem on the CPU: one range of all rows; raises where `Scratch` does."""
    if problem.m == 0 or problem.n == 0:
        return
    var room = left_bytes(problem.left, problem.right, problem.m, problem.k)
    var scratch = Scratch(Ranges.num_bytes(1) + room)
    var ranges = Ranges.carve(1, scratch)
    ranges.append(0, problem.m)
    multiply_ranges[known](RangedProblem.of(problem, ranges), scratch, team)
    _ = scratch^


def left_bytes(left: Left, right: Right, rows: Int, k: Int) -> Int:
    """Returns the scratch memory that some prepared rows of a left side take."""
    if kernel_of(left, right) == FLOATS:
        return floats.num_bytes(left, rows, k)
    return bytes.num_bytes(left, right, rows, k)


def multiply_ranges[known: Known, T: Team](problem: RangedProblem, mut scratch: Scratch, team: T):
    """Computes the products of ranges of rows, one or more."""
    comptime if may_be(KERNEL, BYTES) and bytes.may_support[known]():
        if kernel_of(problem.left, problem.experts.right) == BYTES:
            return bytes.launch[known](problem, scratch, team)
    comptime if may_be(KERNEL, DIGITS) and known.has_kind(LeftKind.INTEGERS):
        if problem.left.kind == LeftKind.INTEGERS:
            return bytes.launch_digits[known](problem, scratch, team)
    comptime if may_be(KERNEL, FLOATS) and known.kind != LeftKind.INTEGERS.code:
        floats.launch[known](problem, scratch, team)


@fieldwise_init
struct KernelChoice(TrivialRegisterPassable):
    """The kernel of a problem, and why."""

    var name: StaticString
    var reason: StaticString
    var group_rows: Int
    """Rows of C whose sums are in registers together."""

    @staticmethod
    def of(problem: Problem) -> Self:
        """Returns what `multiply` launches."""
        var m, right = problem.m, problem.right
        var kernel = kernel_of(problem.left, right)
        if kernel == FLOATS:
            var groups = floats.groups_of(m, problem.left, right)
            return Self(floats.NAME, floats.REASON, groups.largest())
        var reason = bytes.DIGITS_REASON if kernel == DIGITS else bytes.REASON
        return Self(bytes.NAME, reason, bytes.groups_of(m, right).largest())
