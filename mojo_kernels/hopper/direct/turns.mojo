"""Two groups that multiply in turns: while one does, the other one adds up and decodes.

    tensor cores     0     1     0     1
    registers        1     0     1     0

Where both run as they like they fall into step: tensor cores serve both at once, so that both wait for
them at the same time, and leave them idle at the same time. A turn is a stage. It ends before sums are
added: else the next one waits for that, too, which takes 8 % longer (measured). Where nothing is decoded,
or the next stage is decoded ahead, turns take 10 to 15 % longer than none.
"""

from ..instructions.shared_memory import pass_turn, take_turn
from ..shapes import WARP_GROUP

comptime FIRST_TURN = 10
"""The hardware barrier of the first group's turn; the other one's follows."""
comptime BOTH = 2 * WARP_GROUP
"""Threads of both groups."""


@always_inline
def begin_turns(group: UInt32):
    """Gives the first group the first turn; both call it before their first stage."""
    if group == 1:
        end_turn(group)


@always_inline
def end_turns(group: UInt32):
    """Takes the turn that was passed last; both call it behind their last stage."""
    if group == 0:
        begin_turn(group)


@always_inline
def begin_turn(group: UInt32):
    """Waits until the other group has multiplied."""
    take_turn[FIRST_TURN, BOTH](group)


@always_inline
def end_turn(group: UInt32):
    """Lets the other group multiply."""
    pass_turn[FIRST_TURN, BOTH](group)
