"""Runs the tasks of a kernel on the threads of the MAX runtime.

A graph brings its own threads, as many as its session says. `RuntimeTeam` is
the `Team` that uses them: it enqueues one worker a thread, and workers claim
tasks one by one. Waking a worker takes tens of microseconds, so a piece of
work with a single task stays on the calling thread.

Workers are enqueued on the context itself: the runtime's own helpers flush
subnormal floats to zero in every task, which would change bits.
"""

from max.gpu.host import DeviceAttribute, DeviceContext
from std.atomic import Atomic
from std.memory.alloc import unsafe_alloc
from std.os import abort

from .threads import Team, Work


@fieldwise_init
struct RuntimeTeam(Team):
    """The threads behind the context of a CPU op."""

    var context: DeviceContext
    """The context that the graph hands to the op."""

    def run_all[W: Work](self, var work: W, num_tasks: Int):
        """Does tasks 0 .. num_tasks - 1 on at most as many threads as the session has."""
        try:
            comptime THREADS = DeviceAttribute.PARALLELISM_LEVEL
            var num_workers = min(num_tasks, self.context.get_attribute(THREADS))
            if num_workers < 2:
                for task in range(num_tasks):
                    work.run(task)
            else:
                self._share(work^, num_tasks, num_workers)
        except error:
            abort(String("the MAX runtime cannot run tasks: ", error))

    def _share[W: Work](self, var work: W, num_tasks: Int, num_workers: Int) raises:
        """Lets workers claim tasks; what they share lives on the heap."""
        var shared = unsafe_alloc[W](1)
        shared.unsafe_write(work^)
        var claimed = unsafe_alloc[Atomic[Int64]](1)
        claimed.unsafe_write(Atomic[Int64](0))

        def claim_tasks(worker: Int) {var shared, var claimed, var num_tasks}:
            while True:
                var task = Int(claimed[].fetch_add(1))
                if task >= num_tasks:
                    return
                shared[].run(task)

        self.context.enqueue_cpu_range(claim_tasks, count=num_workers)
        self.context.synchronize()
        shared.unsafe_deinit_pointee()
        shared.unsafe_free()
        claimed.unsafe_deinit_pointee()
        claimed.unsafe_free()
