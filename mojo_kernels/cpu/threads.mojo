"""Runs the independent tasks of a kernel on a team of threads.

The extension module borrows the OpenMP team of the process that imports it:
torch's own threads, so torch.set_num_threads is respected, nothing is
oversubscribed and a dispatch costs under a microsecond. A MAX graph brings
its own runtime. Neighbouring tasks are claimed together, fewer and fewer of
them; which thread runs a task says nothing about its result.
"""

from std.atomic import Atomic
from std.memory.alloc import unsafe_alloc


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

comptime _Entry = def(Int) abi("C") thin -> None
comptime _GompParallel = def(_Entry, Int, UInt32, UInt32) abi("C") thin -> None


struct Job[W: Work](Movable):
    """Work that threads share, and the number of tasks claimed so far.

    It lives on the heap: threads reach it through an address, which keeps
    nothing on the stack alive.
    """

    var work: Self.W
    var claimed: Atomic[Int64]
    var num_tasks: Int
    var num_threads: Int

    def __init__(out self, var work: Self.W, num_tasks: Int, num_threads: Int):
        """Leaves all tasks to be claimed."""
        self.work = work^
        self.claimed = Atomic[Int64](0)
        self.num_tasks = num_tasks
        self.num_threads = num_threads

    @staticmethod
    def on_heap(
        var work: Self.W, num_tasks: Int, num_threads: Int
    ) -> MutPointer[Self, MutUntrackedOrigin]:
        """Returns a job that `free` ends."""
        var job = unsafe_alloc[Self](1)
        job.unsafe_write(Self(work^, num_tasks, num_threads))
        return job

    @staticmethod
    def free(job: MutPointer[Self, MutUntrackedOrigin]):
        """Frees a job that no thread works on any more."""
        job.unsafe_deinit_pointee()
        job.unsafe_free()

    def help(mut self):
        """Does tasks until none are left to claim."""
        var first = self.claimed.load()
        while first < Int64(self.num_tasks):
            var left = self.num_tasks - Int(first)
            var count = max(1, min(MAX_CLAIMED, left // (CLAIMS_PER_THREAD * self.num_threads)))
            # Where another thread was faster, `first` becomes what that one left.
            if self.claimed.compare_exchange(first, first + Int64(count)):
                for task in range(Int(first), Int(first) + count):
                    self.work.run(task)
                first = self.claimed.load()


def _help[W: Work](address: Int) abi("C"):
    """The function each thread of an OpenMP team runs."""
    MutPointer[Job[W], MutUntrackedOrigin](unsafe_from_address=address)[].help()


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
        if self.gomp_parallel == 0 or num_tasks < 2 or not is_shared:
            for task in range(num_tasks):
                work.run(task)
            return

        comptime NO_FLAGS = UInt32(0)
        var job = Job.on_heap(work^, num_tasks, self.num_threads)
        var address = self.gomp_parallel
        var gomp_parallel = Pointer(to=address).unsafe_bitcast[_GompParallel]()[]
        gomp_parallel(_help[W], Int(job), UInt32(self.num_threads), NO_FLAGS)
        Job.free(job)
