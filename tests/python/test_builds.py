"""The cache: what is loaded from it, what is built anew, what is refused; without a compiler.

Files of a few bytes stand in for modules; `test_native_build` has one of Mojo.
"""

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mx_kernels._core import builds, trust
from mx_kernels._core.builds import Build, NativeBuildError, Turn
from tests import CORE_ALONE

KEY = f"avx2-{5:016x}"
CONTENT = bytes(range(1, 256)) * 40
# Nothing is compiled, but something is made that `tests/artefacts` does not list.
pytestmark = pytest.mark.compiles

PACKAGE = Path(builds.__file__).parent


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def build_of(content=CONTENT, made=None):
    """Returns what makes `content`, and notes in `made` that it was made."""

    def make(target):
        target.write_bytes(content)
        if made is not None:
            made.append(target)

    return Build(KEY, "module.so", "making bytes", make)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


DAMAGES = {
    "empty": lambda content: b"",
    "cut to a page": lambda content: content[:4096],
    "one byte short": lambda content: content[:-1],
    "zeros at the end": lambda content: content[:5000].ljust(len(content), b"\0"),
    "zeros within": lambda content: content[:100] + bytes(50) + content[150:],
    "one bit": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "longer": lambda content: content + b"\0",
    "another's": lambda content: b"\x7fELF" + bytes(1000),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_as_it_was_made_is_made_anew_and_that_is_said(cache, caplog, damage):
    made = []
    build = build_of(made=made)
    target = build.find_or_make(cache)
    target.write_bytes(DAMAGES[damage](CONTENT))
    assert not caplog.records
    assert build.find_or_make(cache).read_bytes() == CONTENT
    assert len(made) == 2
    (warning,) = caplog.messages
    assert f"{target} is not what was built" in warning
    assert build.find_or_make(cache).read_bytes() == CONTENT
    assert len(made) == 2
    assert caplog.messages == [warning]


def test_a_file_without_its_mark_is_made_anew(cache):
    target = build_of().path(cache)
    target.parent.mkdir(parents=True, mode=0o755)
    target.write_bytes(b"")
    target.chmod(0o644)
    assert build_of().find_or_make(cache, is_quiet=True).read_bytes() == CONTENT


def test_a_copy_of_the_cache_is_as_good(cache, tmp_path):
    build_of().find_or_make(cache)
    subprocess.run(["cp", "-r", cache, tmp_path / "copy"], check=True)
    made = []
    found = build_of(made=made).find_or_make(tmp_path / "copy")
    assert (found.read_bytes(), made) == (CONTENT, [])


def test_a_crash_at_any_moment_leaves_a_whole_file_or_none(cache, monkeypatch):
    """The disk has the content before the mark, and both before the name."""
    calls = []

    def noting(name, function):
        def noted(path, *args):
            calls.append((name, Path(path).name))
            return function(path, *args)

        return noted

    monkeypatch.setattr(trust, "sync", noting("sync", trust.sync))
    monkeypatch.setattr(Path, "touch", lambda path, mode: calls.append(("mark", path.name[:7])))
    monkeypatch.setattr(os, "replace", noting("name", os.replace))
    build_of().find_or_make(cache, is_quiet=True)
    made = [("sync", "module.so"), ("mark", "sha256-"), ("name", "module.so"), ("sync", KEY)]
    assert calls == made


PARTS = {"cache": (), "folder": (KEY,), "file": (KEY, "module.so")}


def give_to_another(path, monkeypatch):
    """Makes a path another user's; who is not root cannot, and becomes another user."""
    if os.geteuid() == 0:
        os.chown(path, 65534, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("mode", [None, 0o775, 0o757, 0o777])
def test_what_another_user_could_have_put_there_is_refused(cache, part, mode, monkeypatch):
    made = []
    build = build_of(made=made)
    build.find_or_make(cache)
    place = cache.joinpath(*PARTS[part])
    if mode is None:
        give_to_another(place, monkeypatch)
    else:
        place.chmod(mode)
    before = names_in(cache), names_in(cache / KEY)
    for use in (build.find_or_make, build.is_there):
        with pytest.raises(NativeBuildError) as raised:
            use(cache)
        said = str(raised.value)
        assert "not trusted: got" in said and "expected" in said
        assert "chmod -R go-w" in said if mode else "MX_KERNELS_CACHE" in said
    assert (names_in(cache), names_in(cache / KEY), len(made)) == (*before, 1)


@pytest.mark.parametrize("part", ["folder", "file"])
def test_a_link_in_the_cache_is_refused(cache, tmp_path, part):
    elsewhere = build_of().find_or_make(tmp_path / "elsewhere")
    place = cache.joinpath(*PARTS[part])
    place.parent.mkdir(parents=True)
    place.symlink_to(elsewhere if part == "file" else elsewhere.parent)
    with pytest.raises(NativeBuildError, match="got a symbolic link"):
        build_of().find_or_make(cache)


def test_the_cache_may_be_a_link_or_as_sticky_as_tmp_and_its_folders_are_checked(cache, tmp_path):
    cache.mkdir()
    cache.chmod(0o1777)
    (tmp_path / "link").symlink_to(cache)
    target = build_of().find_or_make(tmp_path / "link")
    assert build_of().is_there(cache)
    target.parent.chmod(0o1777)
    with pytest.raises(NativeBuildError, match="mode 1777"):
        build_of().find_or_make(cache)


@pytest.mark.parametrize("umask", [0, 0o002, 0o022, 0o077])
def test_what_is_made_passes_with_every_umask(cache, umask):
    made = []

    def make(target):
        target.write_bytes(CONTENT)
        target.chmod(0o777 & ~umask)  # As compilers do.
        made.append(target)

    before = os.umask(umask)
    try:
        for _ in range(2):
            target = Build(KEY, "module.so", "making", make).find_or_make(cache, is_quiet=True)
    finally:
        os.umask(before)
    assert len(made) == 1
    for path in (cache, target.parent, target):
        assert not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def test_a_cache_that_an_administrator_has_filled_serves_who_cannot_write_there(cache, tmp_path):
    target = build_of().find_or_make(cache)
    for path in (target, target.parent, cache):
        path.chmod(0o555)
    try:
        script = f"""{CORE_ALONE}
import os
from pathlib import Path
from mx_kernels._core.builds import Build, has_compiler
has_compiler()  # Python's own modules may be closed to others.
if os.geteuid() == 0:
    os.chdir({str(cache)!r})  # Folders above are closed to others.
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    cache = Path(".")
else:
    cache = Path({str(cache)!r})
print(Build({KEY!r}, "module.so", "making", None).find_or_make(cache).stat().st_size)
try:
    Build("sse4-0", "module.so", "making", None).find_or_make(cache)
except ImportError as error:
    print(error)
"""
        run = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
    finally:
        for path in (cache, target.parent, target):
            path.chmod(0o755)
    size, said = run.stdout.splitlines()
    assert int(size) == len(CONTENT), run.stderr
    assert "Permission denied" in said and "set MX_KERNELS_CACHE to a folder that you" in said


def test_a_lock_that_is_a_link_is_replaced_and_no_lock_is_cut(cache, tmp_path):
    precious, lock = tmp_path / "precious", cache / f"{KEY}.lock"
    precious.write_text("precious")
    cache.mkdir()
    lock.symlink_to(precious)
    build_of().find_or_make(cache, is_quiet=True)
    assert precious.read_text() == "precious"
    assert not lock.is_symlink()
    lock.write_text("mine")
    with builds.only_one_process(lock) as turn:
        assert (turn, lock.read_text()) == (Turn.OURS, "mine")


def without_locks(monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(builds.fcntl, "flock", refuse)


def test_without_locks_two_build_and_both_have_a_whole_file(cache, monkeypatch):
    without_locks(monkeypatch)
    both, found = threading.Barrier(2, timeout=60), []

    def run(content):
        def make(target):
            target.write_bytes(content[:100])
            both.wait()
            target.write_bytes(content)
            both.wait()

        target = Build(KEY, "module.so", "making", make).find_or_make(cache, is_quiet=True)
        found.append(target.read_bytes())

    # Compilers need not make the same bytes twice.
    contents = [CONTENT, CONTENT[::-1]]
    threads = [threading.Thread(target=run, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2 and set(found) <= set(contents)
    made = []
    assert build_of(made=made).find_or_make(cache).read_bytes() in contents
    assert not made, "whichever file is there passes"


def test_what_dead_builds_left_is_removed_by_who_is_alone_or_after_a_day(cache, monkeypatch):
    def leave(name, days):
        folder = cache / KEY / f".build-{name}"
        folder.mkdir(parents=True)
        (folder / "module.so").write_bytes(b"half")
        moment = time.time() - days * 86400
        os.utime(folder, (moment, moment))

    leave("another's", days=0)
    leave("old", days=2)
    with monkeypatch.context() as patch:
        without_locks(patch)
        target = build_of().find_or_make(cache, is_quiet=True)
    assert [name for name in names_in(cache / KEY) if name.startswith(".")] == [".build-another's"]
    target.unlink()
    build_of().find_or_make(cache, is_quiet=True)
    assert [name[:7] for name in names_in(cache / KEY)] == ["module.", "sha256-"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_is_named_and_leaves_nothing(cache, number):
    def make(target):
        target.write_bytes(b"half")
        raise OSError(number, os.strerror(number), str(target))

    with pytest.raises(NativeBuildError) as raised:
        Build(KEY, "module.so", "making", make).find_or_make(cache, is_quiet=True)
    said = str(raised.value)
    assert os.strerror(number) in said and str(cache) in said
    assert ("free some space" in said) == (number != errno.EIO)
    assert names_in(cache / KEY) == []


def test_a_compiler_that_finds_the_disk_full_is_explained():
    output = f"error: LLVM ERROR: IO failure on output stream: {os.strerror(errno.ENOSPC)}"
    said = builds._explain(["build"], output)
    assert said.startswith("the disk is full; free some space")
    assert output in said


def test_sources_that_cannot_be_copied_are_explained(monkeypatch, tmp_path):
    monkeypatch.setattr(builds.tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(NativeBuildError, match="set TMPDIR to a folder that you can write"):
        builds.compile_mojo(builds.Sources("a.mojo", {}), ["build"])


def test_the_variable_names_a_folder_as_a_shell_would(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    meant = {"~/x": tmp_path / "x", "x/y": tmp_path / "x" / "y", "/x": Path("/x")}
    meant |= {"~": tmp_path, "": tmp_path / "xdg" / "mx_kernels"}
    for named, folder in meant.items():
        monkeypatch.setenv("MX_KERNELS_CACHE", named)
        assert builds.cache_folder() == folder, named
    monkeypatch.setenv("MX_KERNELS_CACHE", "~no such user/x")
    with pytest.raises(NativeBuildError, match=r"no home folder for ~no such user/x .*; set MX_K"):
        builds.cache_folder()


# A fork while another thread builds, in a process of its own. The child makes the same once the
# parent is done, and ends as Python does, with all that is to be done at its end.
FORK = f"""{CORE_ALONE}
import os, signal, threading, time
from pathlib import Path
from mx_kernels._core.builds import Build
from mx_kernels._core.native import LoadLock

cache, lock, begun = Path(sys.argv[1]), LoadLock(), threading.Event()

def make(target):
    target.write_bytes(b"half")
    begun.set()
    time.sleep(float(sys.argv[2]))
    target.write_bytes(b"whole")

def first_call():
    with lock:
        return Build("avx2-5", "module.so", "making", make).find_or_make(cache, is_quiet=True)

found = []
thread = threading.Thread(target=lambda: found.append(first_call()))
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)
    if len(sys.argv) > 3:
        print("forked", flush=True)
        time.sleep(30)
    with lock:
        pass
    sys.exit(0)
status = os.waitpid(child, 0)[1]
thread.join()
names = sorted(path.name[:7] for path in cache.glob("avx2-5/*"))
print(status, *(path.read_bytes() for path in found), *names)
"""


def test_a_child_of_a_fork_while_a_thread_builds_waits_for_nobody_and_breaks_nothing(cache):
    run = subprocess.run(
        [sys.executable, "-c", FORK, cache, "1"], capture_output=True, text=True, check=False
    )
    assert run.stdout == "0 b'whole' module. sha256-\n", run.stderr


def test_a_lock_ends_with_who_holds_it_though_a_forked_child_lives_on(cache):
    holder = subprocess.Popen(
        [sys.executable, "-c", FORK, cache, "30", "and the child stays"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert holder.stdout.readline() == "forked\n"
        with builds.only_one_process(cache / "avx2-5.lock", wait=False) as turn:
            assert turn is Turn.ANOTHERS
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with builds.only_one_process(cache / "avx2-5.lock", wait=False) as turn:
            assert turn is Turn.OURS
    finally:
        os.killpg(holder.pid, signal.SIGKILL)


def test_every_lock_of_the_package_is_free_in_a_forked_child():
    """Those of threads by `LoadLock`, those of files by `only_one_process`."""
    kinds = ("threading.Lock(", "threading.RLock(", "threading.Condition(", "fcntl.flock(")
    users = {
        path.name
        for path in PACKAGE.rglob("*.py")
        for kind in kinds
        if kind in path.read_text(encoding="utf-8")
    }
    assert users <= {"native.py", "builds.py"}


def test_who_forks_in_a_lock_goes_on_in_both_processes(tmp_path):
    with builds.only_one_process(tmp_path / "lock") as turn:
        child = os.fork()
        if child == 0:
            assert turn is Turn.OURS
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with open(tmp_path / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
