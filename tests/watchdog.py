"""A pytest plugin that ends what hangs, and says what it was: a test, a build, or the whole run.

A test may take `--test-limit` seconds, a build in it `BUILD_SECONDS` of its own. What takes longer
hangs: a thread of C, which needs no lock of Python's, prints the stacks of all threads and ends the
process. pytest-xdist then names the test, puts another process in its place and goes on.

The run may take `--limit` minutes. Then the first process prints which tests were running, lets
those of pytest-xdist print their stacks, and ends the run as failed, with its table of durations.
"""

import contextlib
import faulthandler
import os
import signal
import time

import pytest

TEST_SECONDS = 600
"""The slowest test takes 90 seconds on two cores that do nothing else."""
BUILD_SECONDS = 1500
"""The slowest build takes six minutes there, and more beside other work."""
RUN_MINUTES = 60


def pytest_addoption(parser):
    group = parser.getgroup("watchdog", "limits of time")
    group.addoption("--test-limit", type=float, default=TEST_SECONDS, metavar="SECONDS")
    group.addoption("--limit", type=float, default=RUN_MINUTES, metavar="MINUTES")


def pytest_configure(config):
    # Before the tests' output is captured; processes of pytest-xdist share the first one's.
    Limit.stderr = os.dup(2)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Run(config.option.limit))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with Limit.of(item.config.option.test_limit):
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem, sched):
    # With `--dist loadfile`, xdist 3.8 puts the ended process's files back as they were: the test
    # that hung would begin again, and of a file whose tests are done the end would be waited for.
    queue = getattr(sched, "workqueue", {})
    for file, is_done in list(queue.items()):
        if crashitem in is_done:
            is_done[crashitem] = True
        if all(is_done.values()):
            del queue[file]


def pytest_enter_pdb():
    # Who debugs takes as long as it takes.
    faulthandler.cancel_dump_traceback_later()
    signal.setitimer(signal.ITIMER_REAL, 0)


class Limit:
    """How long this process may take for what it is at."""

    stderr = 2
    seconds: float | None = None

    @classmethod
    @contextlib.contextmanager
    def of(cls, seconds: float):
        """Grants that time from now on; afterwards, what was granted before begins anew."""
        before, cls.seconds = cls.seconds, seconds
        cls._begin()
        try:
            yield
        finally:
            cls.seconds = before
            cls._begin()

    @classmethod
    def _begin(cls):
        if cls.seconds is None:
            faulthandler.cancel_dump_traceback_later()
        else:
            faulthandler.dump_traceback_later(cls.seconds, file=cls.stderr, exit=True)


class Run:
    """The whole run, as its first process sees it."""

    def __init__(self, minutes: float):
        self.minutes = minutes
        self.begun: dict[str, float] = {}
        self.processes: list[int] = []

    def pytest_sessionstart(self):
        signal.signal(signal.SIGALRM, self.end)
        signal.setitimer(signal.ITIMER_REAL, 60 * self.minutes)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self, node):
        # xdist does not say it, and a process that hangs cannot be asked.
        self.processes.append(node.gateway._io.popen.pid)

    def pytest_runtest_logstart(self, nodeid):
        self.begun[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid):
        self.begun.pop(nodeid, None)

    def pytest_sessionfinish(self):
        signal.setitimer(signal.ITIMER_REAL, 0)

    def end(self, *_):
        """Ends the run."""
        now = time.monotonic()
        running = [f"{test} for {now - begin:.0f} s" for test, begin in self.begun.items()]
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGABRT)  # pytest's handler prints the stacks.
                time.sleep(0.5)
        pytest.exit(
            f"the run took longer than {self.minutes:g} minutes; running were: "
            + ("; ".join(running) or "no tests, but what they need was made"),
            returncode=1,
        )
