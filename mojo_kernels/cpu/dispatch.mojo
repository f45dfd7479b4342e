"""Which kernel of the CPU computes a product: the first of the list that supports it.

    bytes     MXFP4 and MXINT8, with each other
    floats    everything else, and slower
"""

from ..problem import Known, Problem
from .bytes import kernel as bytes
from .floats import kernel as floats
from .threads import Team


def multiply[known: Known, T: Team](problem: Problem, team: T):
    """Computes a problem on the CPU."""
    if problem.m == 0 or problem.n == 0:
        return
    comptime if bytes.may_support[known]():
        if bytes.supports(problem):
            return bytes.launch[known](problem, team)
    floats.launch[known](problem, team)


@fieldwise_init
struct Choice(TrivialRegisterPassable):
    """The kernel of a problem, and why."""

    var name: StaticString
    var reason: StaticString
    var group_rows: Int
    """Rows of C whose sums are in registers together."""

    @staticmethod
    def of(problem: Problem) -> Self:
        """Returns what `multiply` launches."""
        if bytes.supports(problem):
            return Self(bytes.NAME, bytes.REASON, bytes.groups_of(problem).largest())
        return Self(floats.NAME, floats.REASON, floats.groups_of(problem).largest())
