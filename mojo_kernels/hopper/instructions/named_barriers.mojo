"""The hardware's named barriers: who waits for whom, beside the stages of a ring.

    barrier    who
    1          all consumers
    8, 9       the warps of a warp group
    10, 11     two warp groups that multiply in ping-pong

Ping-pong: while one warp group multiplies, the other one promotes sums and decodes.

    tensor cores     0     1     0     1
    registers        1     0     1     0

Where both run as they like they fall into step: tensor cores serve both at once, so that both wait for
them at the same time, and leave them idle at the same time. A turn is a stage. It ends before sums are
promoted: else the next one waits for that, too, which takes 8 % longer (measured). Where nothing is
decoded, or the next stage is decoded ahead, ping-pong takes 10 to 15 % longer than none.
"""

from .shared_memory import pass_turn, take_turn, wait_at
from ..shapes import CONSUMER_WARPS, WARP_GROUP

comptime CONSUMERS = UInt32(1)
comptime FIRST_GROUP = 8
comptime FIRST_TURN = 10
comptime BOTH = 2 * WARP_GROUP
"""Threads of both warp groups."""


@always_inline
def wait_for_consumers[warps: Int = CONSUMER_WARPS]():
    """Waits for all warps that multiply; earlier writes are visible to them afterwards."""
    wait_at[32 * warps](CONSUMERS)


@always_inline
def wait_for_group(group: UInt32):
    """Waits for the warps of a warp group; earlier writes are visible to them afterwards."""
    wait_at[WARP_GROUP](UInt32(FIRST_GROUP) + group)


@always_inline
def begin_ping_pong(group: UInt32):
    """Gives the first warp group the first turn; both call it before their first stage."""
    if group == 1:
        end_turn(group)


@always_inline
def end_ping_pong(group: UInt32):
    """Takes the turn that was passed last; both call it behind their last stage."""
    if group == 0:
        begin_turn(group)


@always_inline
def begin_turn(group: UInt32):
    """Waits until the other warp group has multiplied."""
    take_turn[FIRST_TURN, BOTH](group)


@always_inline
def end_turn(group: UInt32):
    """Lets the other warp group multiply."""
    pass_turn[FIRST_TURN, BOTH](group)
