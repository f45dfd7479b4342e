"""Runs the independent tasks of a kernel on a team of threads.

The extension module borrows the OpenMP team of the process that imports it:
torch's own threads, so torch.set_num_threads is respected, nothing is
oversubscribed and a dispatch costs under a microsecond. A MAX graph brings
its own runtime. Tasks are claimed one by one, so which thread runs a task
says nothing about its result.
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


comptime _Entry = def(Int) abi("C") thin -> None
comptime _GompParallel = def(_Entry, Int, UInt32, UInt32) abi("C") thin -> None


@fieldwise_init
struct _Job[W: Work](Movable):
    """Work that a team shares, and the number of tasks claimed so far.

    It lives on the heap: threads reach it through an address, which keeps
    nothing on the stack alive.
    """

    var work: Self.W
    var claimed: Atomic[Int64]
    var num_tasks: Int


def _claim_tasks[W: Work](address: Int) abi("C"):
    """The function each thread of an OpenMP team runs."""
    var job = MutPointer[_Job[W], MutUntrackedOrigin](unsafe_from_address=address)
    while True:
        var task = Int(job[].claimed.fetch_add(1))
        if task >= job[].num_tasks:
            return
        job[].work.run(task)


@fieldwise_init
struct OpenMPTeam(Team, TrivialRegisterPassable):
    """The OpenMP team of this process, or the calling thread alone."""

    var gomp_parallel: Int
    """Address of the process's `GOMP_parallel`; 0 for no threads."""

    def run_all[W: Work](self, var work: W, num_tasks: Int, is_shared: Bool = True):
        """Does tasks 0 .. num_tasks - 1; the runtime chooses the number of threads."""
        if self.gomp_parallel == 0 or num_tasks < 2 or not is_shared:
            for task in range(num_tasks):
                work.run(task)
            return

        comptime DEFAULT_THREADS = UInt32(0)
        comptime NO_FLAGS = UInt32(0)
        var job = unsafe_alloc[_Job[W]](1)
        job.unsafe_write(_Job(work^, Atomic[Int64](0), num_tasks))
        var address = self.gomp_parallel
        var gomp_parallel = Pointer(to=address).unsafe_bitcast[_GompParallel]()[]
        gomp_parallel(_claim_tasks[W], Int(job), DEFAULT_THREADS, NO_FLAGS)
        job.unsafe_deinit_pointee()
        job.unsafe_free()
