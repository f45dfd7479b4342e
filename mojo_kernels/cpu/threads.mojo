"""Runs the independent tasks of a kernel on a team of threads.

The extension module borrows the OpenMP team of the process that imports it:
torch's own threads, so torch.set_num_threads is respected, nothing is
oversubscribed and a dispatch costs under a microsecond. A MAX graph brings
its own runtime. Neighbouring tasks are claimed together, fewer and fewer of
them; which thread runs a task says nothing about its result.

A team ends a job when all of its threads have looked for work. One whose core is busy with another
process looks a slice of the scheduler later, some milliseconds, and everybody waits. `Balance`
keeps account of what a team saves and of what waiting for it costs, and leaves it alone while it
costs more.
"""

from std.atomic import Atomic
from std.ffi import _Global
from std.time import perf_counter_ns


trait Work(Deinitable, Movable):
    """Tasks that may run in any order and at the same time."""

    def run(self, task: Int):
        """Does task number `task`."""
        ...


trait Team:
    """Something that runs every task of a piece of work, and returns when all are done."""

    def run_all[W: Work](self, var work: W, num_tasks: Int, is_shared: Bool = True):
        """Does tasks 0 .. num_tasks - 1; on the calling thread alone if they are not shared."""
        ...


comptime MAX_CLAIMED = 16
"""Tasks that a thread claims at once: those of neighbours read memory as one long stream. One row
of a layer of experts, from memory, took a fifth longer one by one (Zen 4, 2026-11-22)."""
comptime CLAIMS_PER_THREAD = 4
"""How often a thread comes back for its share of what is left, so that all end together."""

comptime PAYBACK = 20
"""Calls do without a team for this many times as long as waiting for it has cost: a core that is
busy makes them slower than one thread by a twentieth at most, and by what the first wait costs.
With 10 it was 1.1 to 1.6 times one thread's time, with 20 1.0 to 1.3 (Zen 4, 2026-11-29)."""
comptime MAX_SAVED = 5_000_000
"""What a team saved excuses so much waiting, in nanoseconds, and a first team may cost it: now and
then a thread of an idle machine is late, by up to a slice of the scheduler. With a tenth of it,
products of one row took up to a tenth longer on an idle virtual machine (Zen 4, 2026-11-29)."""
comptime MAX_LOST = 50_000_000
"""Longer waits count as much as this: whatever one of them was, the team is asked again within
a second. Guess."""

comptime FOREVER = Int.MAX

comptime _Run = def(Int, Int) thin -> None
comptime _Entry = def(Int) abi("C") thin -> None
comptime _GompParallel = def(_Entry, Int, UInt32, UInt32) abi("C") thin -> None


struct Job(Movable):
    """Work that threads share, and the number of tasks claimed so far.

    It knows its work by an address and a function: threads share the code of all kinds of work.
    """

    var work: Int
    """Where it is."""
    var run: _Run
    """Runs a task of the work at an address."""
    var claimed: Atomic[Int64]
    var num_tasks: Int
    var num_threads: Int
    var task_time: Atomic[Int64]
    """The time that a task takes, in nanoseconds: the least of the threads' means."""

    def __init__[W: Work](out self, ref work: W, num_tasks: Int, num_threads: Int):
        """Leaves all tasks to be claimed; the work outlives the job."""
        self.work = Int(Pointer(to=work))
        self.run = _run_at[W]
        self.claimed = Atomic[Int64](0)
        self.num_tasks = num_tasks
        self.num_threads = num_threads
        self.task_time = Atomic[Int64](Int64(FOREVER))

    def help(mut self):
        """Does tasks until none are left to claim, and notes how long one takes."""
        var start = Int(perf_counter_ns())
        var num_done = self.do_tasks()
        if num_done > 0:
            var mean = Int64((Int(perf_counter_ns()) - start) // num_done)
            var least = self.task_time.load()
            while mean < least and not self.task_time.compare_exchange(least, mean):
                pass

    def do_tasks(mut self, until: Int = FOREVER) -> Int:
        """Does tasks until none are left to claim, or until a time; returns how many."""
        var num_done = 0
        var first = self.claimed.load()
        while first < Int64(self.num_tasks):
            var left = self.num_tasks - Int(first)
            var count = max(1, min(MAX_CLAIMED, left // (CLAIMS_PER_THREAD * self.num_threads)))
            if until != FOREVER:
                if Int(perf_counter_ns()) >= until:
                    break
                count = 1
            # Where another thread was faster, `first` becomes what that one left.
            if self.claimed.compare_exchange(first, first + Int64(count)):
                for task in range(Int(first), Int(first) + count):
                    self.run(self.work, task)
                num_done += count
                first = self.claimed.load()
        return num_done

    def num_left(self) -> Int:
        """Returns the tasks that nobody has claimed."""
        return self.num_tasks - Int(self.claimed.load())


def _all_saved() -> Atomic[Int64]:
    return Atomic[Int64](-MAX_SAVED)


comptime _BALANCE = _Global["mx_kernels_balance", _all_saved]


struct Balance:
    """What the team of this process has cost, less what it has saved.

    Nanoseconds of its callers, from -MAX_SAVED to MAX_LOST: the time of a call, less what one thread
    would have taken for its tasks. What a task takes tells the thread that was fastest; others may
    have been off their core meanwhile, the caller too.
    """

    @staticmethod
    def lost() -> Int:
        """Returns what is lost, negative where the team has saved more."""
        try:
            return Int(_BALANCE.get_or_create_ptr()[].load())
        except:
            return 0

    @staticmethod
    def add(nanoseconds: Int):
        """Adds what a call has cost; of callers at the same time one may not count."""
        try:
            ref balance = _BALANCE.get_or_create_ptr()[]
            var before = balance.load()
            var after = before + Int64(nanoseconds)
            after = after.clamp(Int64(-MAX_SAVED), Int64(MAX_LOST))
            _ = balance.compare_exchange(before, after)
        except:
            pass


def _run_at[W: Work](address: Int, task: Int):
    """Runs a task of the work at an address."""
    MutPointer[W, MutUntrackedOrigin](unsafe_from_address=address)[].run(task)


def help_at(address: Int) abi("C"):
    """Helps with the job at an address: what each thread of an OpenMP team runs."""
    MutPointer[Job, MutUntrackedOrigin](unsafe_from_address=address)[].help()


@fieldwise_init
struct OpenMPTeam(Team, TrivialRegisterPassable):
    """The OpenMP team of this process, or the calling thread alone."""

    var gomp_parallel: Int
    """Address of the process's `GOMP_parallel`; 0 for no threads."""
    var num_threads: Int
    """How many threads that runs."""

    @staticmethod
    def alone() -> Self:
        """Returns the calling thread."""
        return Self(0, 1)

    def run_all[W: Work](self, var work: W, num_tasks: Int, is_shared: Bool = True):
        """Does tasks 0 .. num_tasks - 1."""
        var num_threads = self.num_threads if is_shared and num_tasks > 1 else 1
        var job = Job(work, num_tasks, num_threads)
        self._share(Int(Pointer(to=job)))
        _ = job^
        _ = work^

    def _share(self, address: Int):
        """Does the job at an address together with the team, or here if that is for one thread."""
        ref job = MutPointer[Job, MutUntrackedOrigin](unsafe_from_address=address)[]
        if self.gomp_parallel == 0 or job.num_threads == 1:
            _ = job.do_tasks()
            return

        var start = Int(perf_counter_ns())
        var lost = Balance.lost()
        if lost > 0:
            _ = job.do_tasks(until=start + PAYBACK * lost)
            var end = Int(perf_counter_ns())
            Balance.add((start - end) // PAYBACK)
            start = end

        var num_tasks = job.num_left()
        if num_tasks <= 0:
            return
        comptime NO_FLAGS = UInt32(0)
        var function = self.gomp_parallel
        var gomp_parallel = Pointer(to=function).unsafe_bitcast[_GompParallel]()[]
        gomp_parallel(help_at, address, UInt32(job.num_threads), NO_FLAGS)
        var alone = num_tasks * Int(job.task_time.load())
        Balance.add(Int(perf_counter_ns()) - start - alone)
