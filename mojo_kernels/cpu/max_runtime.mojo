"""Runs the tasks of a kernel on the threads of the MAX runtime.

A graph brings its own threads, as many as its session says. `RuntimeTeam` is
the `Team` that uses them: the calling thread and its helpers share a `Job`.
Waking a helper takes tens of microseconds, and the call ends when all
have looked for work, so a single task stays on the calling thread.

Helpers are enqueued on the context itself: the runtime's own helper functions
flush subnormal floats to zero in every task, which would change bits.
"""

from max.gpu.host import DeviceAttribute, DeviceContext
from std.os import abort

from .threads import Job, Team, Work, help_at


@fieldwise_init
struct RuntimeTeam(Team):
    """The calling thread and the threads behind the context of a CPU op."""

    var context: DeviceContext
    """The context that the graph hands to the op."""

    def run_all[W: Work](self, var work: W, num_tasks: Int, is_shared: Bool = True):
        """Does tasks 0 .. num_tasks - 1 on at most as many threads as the session has."""
        try:
            comptime THREADS = DeviceAttribute.PARALLELISM_LEVEL
            var num_threads = 1
            if is_shared and num_tasks > 1:
                num_threads = min(num_tasks, self.context.get_attribute(THREADS))
            var job = Job(work, num_tasks, num_threads)
            self._share(Int(Pointer(to=job)), num_threads)
            _ = job^
        except error:
            abort(String("the MAX runtime cannot run tasks: ", error))
        _ = work^

    def _share(self, job: Int, num_threads: Int) raises:
        """Does the job at an address together with helpers, and waits for them.

        One helper fewer than threads left a second thread idle: the runtime
        keeps one for the caller's own wait.
        """
        if num_threads == 1:
            help_at(job)
            return

        def help(helper: Int) {var job}:
            help_at(job)

        self.context.enqueue_cpu_range(help, count=num_threads)
        help_at(job)
        self.context.synchronize()
