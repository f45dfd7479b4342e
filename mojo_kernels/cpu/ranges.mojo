"""Rows in ranges that go with an expert each: what every kernel of the CPU multiplies.

    row        0  1  2  3  4  5  6
    expert     0  0  0  2  2  3  3      ranges: 0..2 with 0, 3..4 with 2, 5..6 with 3
    source     4  0  7  4  1  0  1      which row of the left side, if they are not in order

A product is one range of all rows. Work on several is cut range by range: a task belongs to one,
and tasks of all ranges are one piece of work for the team.
"""

from layout import Coord

from ..experts import Experts
from ..numbers.gates import Gate
from ..operands import Flat, flat
from ..problem import Left, Problem
from .scratch import Scratch, padded
from .threads import Team, Work


@fieldwise_init
struct RowRange(TrivialRegisterPassable):
    """Neighbouring rows, and the expert that they go with."""

    var expert: Int
    var first: Int
    var count: Int


trait RangeWork(TrivialRegisterPassable):
    """Work on ranges; its tasks are independent."""

    def num_tasks(self, rows: RowRange) -> Int:
        """Returns the tasks of a range."""
        ...

    def run(self, rows: RowRange, task: Int):
        """Does a task of a range."""
        ...


@fieldwise_init
struct Ranges(TrivialRegisterPassable):
    """Ranges of rows, in order and not empty, and where the tasks of each begin."""

    var table: Flat[DType.int64]
    """[count, 4]: expert, first row, rows, first task."""
    var count: Int
    var rows: Int
    """Of all ranges."""

    comptime COLUMNS = 4
    comptime FIRST_TASK = 3

    @staticmethod
    def num_bytes(max_count: Int) -> Int:
        """Returns the scratch memory that `carve` takes."""
        return padded[DType.int64](max_count * Self.COLUMNS)

    @staticmethod
    def carve(max_count: Int, mut scratch: Scratch) -> Self:
        """Returns no ranges, with room for some."""
        return Self(scratch.carve[DType.int64](max_count * Self.COLUMNS), 0, 0)

    def append(mut self, expert: Int, count: Int):
        """Adds the next rows, if there are any."""
        if count > 0:
            self._put(self.count, 0, expert)
            self._put(self.count, 1, self.rows)
            self._put(self.count, 2, count)
            self.count += 1
            self.rows += count

    @always_inline
    def range(self, i: Int) -> RowRange:
        """Returns range `i`."""
        return RowRange(self._get(i, 0), self._get(i, 1), self._get(i, 2))

    def cut[W: RangeWork](self, work: W) -> Int:
        """Notes where the tasks of each range begin; returns their number."""
        var num_tasks = 0
        for i in range(self.count):
            self._put(i, Self.FIRST_TASK, num_tasks)
            num_tasks += work.num_tasks(self.range(i))
        return num_tasks

    @always_inline
    def first_task(self, i: Int) -> Int:
        """Returns the first task of range `i`."""
        return self._get(i, Self.FIRST_TASK)

    def range_of_task(self, task: Int) -> Int:
        """Returns the range that a task belongs to."""
        var low, high = 0, self.count
        while high - low > 1:
            var middle = (low + high) // 2
            if self.first_task(middle) <= task:
                low = middle
            else:
                high = middle
        return low

    @always_inline
    def _get(self, i: Int, column: Int) -> Int:
        return Int(self.table.load[width=1](Coord(i * Self.COLUMNS + column)))

    @always_inline
    def _put(self, i: Int, column: Int, value: Int):
        self.table.store(Coord(i * Self.COLUMNS + column), Int64(value))


@fieldwise_init
struct OnRanges[W: RangeWork](Work):
    """The tasks of all ranges as one piece of work."""

    var work: Self.W
    var ranges: Ranges

    @no_inline
    def run(self, task: Int):
        """Does task `task` of all."""
        var i = self.ranges.range_of_task(task)
        self.work.run(self.ranges.range(i), task - self.ranges.first_task(i))


def run_on_ranges[W: RangeWork, T: Team](work: W, ranges: Ranges, is_shared: Bool, team: T):
    """Runs work on the team, or on this thread alone."""
    team.run_all(OnRanges(work, ranges), ranges.cut(work), is_shared)


@fieldwise_init
struct RowSources(TrivialRegisterPassable):
    """Which rows of the left side are multiplied."""

    var table: Int
    """Address of their numbers, int32; 0 for all in order."""
    var rows: Int
    """Rows of the left side."""

    @always_inline
    def of(self, row: Int) -> Int:
        """Returns the row of the left side that is row `row` of the product."""
        if self.table == 0:
            return row
        return Int(flat[DType.int32](self.table, row + 1).load[width=1](Coord(row)))


@fieldwise_init
struct RangedProblem(TrivialRegisterPassable):
    """A product of each range with its expert."""

    var left: Left
    """[sources.rows, k]."""
    var sources: RowSources
    var ranges: Ranges
    var experts: Experts
    """[n, k] each."""
    var values: Int
    """Address of the result, [ranges.rows, n], or half as many columns behind a gate."""
    var dtype: Int
    """Position of its type in `FLOAT_TYPES`."""
    var gate: Gate
    var n: Int
    var k: Int

    @staticmethod
    def of(problem: Problem, ranges: Ranges) -> Self:
        """Returns a product whose rows are one range."""
        return Self(
            problem.left,
            RowSources(0, problem.m),
            ranges,
            Experts.only(problem.right, problem.result),
            problem.result.values,
            problem.result.dtype,
            Gate.NONE,
            problem.n,
            problem.k,
        )
