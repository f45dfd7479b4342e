"""Runs the independent tasks of a kernel on a team of threads.

The extension module borrows the OpenMP team of the process that imports it:
torch's own threads, so torch.set_num_threads is respected, nothing is
oversubscribed and a dispatch costs under a microsecond. A MAX graph brings
its own runtime. Neighbouring tasks are claimed together, fewer and fewer of
them; which thread runs a task says nothing about its result.
"""

from std.atomic import Atomic


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

    def __init__[W: Work](out self, ref work: W, num_tasks: Int, num_threads: Int):
        """Leaves all tasks to be claimed; the work outlives the job."""
        self.work = Int(Pointer(to=work))
        self.run = _run_at[W]
        self.claimed = Atomic[Int64](0)
        self.num_tasks = num_tasks
        self.num_threads = num_threads

    def help(mut self):
        """Does tasks until none are left to claim."""
        var first = self.claimed.load()
        while first < Int64(self.num_tasks):
            var left = self.num_tasks - Int(first)
            var count = max(1, min(MAX_CLAIMED, left // (CLAIMS_PER_THREAD * self.num_threads)))
            # Where another thread was faster, `first` becomes what that one left.
            if self.claimed.compare_exchange(first, first + Int64(count)):
                for task in range(Int(first), Int(first) + count):
                    self.run(self.work, task)
                first = self.claimed.load()


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

    def _share(self, job: Int):
        """Does the job at an address together with the team, or here if that is for one thread."""
        var num_threads = MutPointer[Job, MutUntrackedOrigin](unsafe_from_address=job)[].num_threads
        if self.gomp_parallel == 0 or num_threads == 1:
            help_at(job)
            return

        comptime NO_FLAGS = UInt32(0)
        var address = self.gomp_parallel
        var gomp_parallel = Pointer(to=address).unsafe_bitcast[_GompParallel]()[]
        gomp_parallel(help_at, job, UInt32(num_threads), NO_FLAGS)
