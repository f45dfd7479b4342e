"""The cache of everything that the Mojo compiler makes: each thing once, found by its content.

    <cache>/<label>-<hash>/<file>

The hash covers what can change the file: the entry's source and every Mojo file of ours that it
imports, directly or not; the compiler's options and version; whatever else the caller names. A
change in one room of the package leaves what other rooms are built from alone. The compiler is
shown those files and no others, so an import that the hash overlooks fails the build.

Processes that start together build once: they queue on a file lock, and a file appears complete
or not at all. Without locks, as on some shared disks, each builds for itself. What others could
have written is refused, and what is not whole is built anew, see `trust`. The cache is the folder
that MX_KERNELS_CACHE names, or the user's cache folder; checkouts and environments share it. Of
each label the files that were used last are kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import fcntl
import hashlib
import importlib.metadata
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from mx_kernels._core import trust

HASH_DIGITS = 16
KEPT_OF_A_LABEL = 8
"""Versions of the same thing that stay in the cache."""
KEPT_SECONDS = 24 * 3600
"""What was used since is never removed: another process may be about to open it."""
SCRATCH = ".build-"
"""What the names of folders begin with in which files are made."""
LINKERS = ("cc", "gcc", "clang")
TOOLCHAIN = ("mojo", "max")
FULL = (errno.ENOSPC, errno.EDQUOT)
PR_SET_PDEATHSIG = 1
IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<dots>\.*)(?P<module>[\w.]*)[ \t]+import[ \t]+"
    r"(?P<names>\([^)]*\)|[^\n]*)|import[ \t]+(?P<modules>[^\n]*))",
    re.MULTILINE,
)
COMMENT = re.compile(r"#[^\n]*")
ONLY_WORDS = re.compile(rb'\s*"""(?:(?!""").)*"""\s*', re.DOTALL)
"""A file that has a docstring and nothing else."""
_LIBC = ctypes.CDLL(None)


class NativeBuildError(ImportError):
    """Something could not be built or loaded; the message says what to do."""


@dataclass(frozen=True)
class Sources:
    """A Mojo file and all that it imports from some folders."""

    entry: str
    """The file to compile, a key of `files`."""
    files: Mapping[str, Path]
    """Every file, by its path within the folder that it was found in."""

    @classmethod
    def of(cls, entry: Path, folders: Sequence[Path]) -> Sources:
        """Follows imports from `entry` to files below `folders`; others are the platform's."""
        folder = next(folder for folder in folders if entry.is_relative_to(folder))
        found: dict[str, Path] = {}
        ahead = _with_packages(folder, entry)
        while ahead:
            folder, file = ahead.pop()
            name = file.relative_to(folder).as_posix()
            if name not in found:
                found[name] = file
                for home, imported in imports_of(file, folder, folders):
                    ahead += _with_packages(home, imported)
        name = next(name for name, file in found.items() if file == entry)
        return cls(name, dict(sorted(found.items())))

    def digest(self, facts: Iterable[str]) -> str:
        """Returns the hash of the files' content and of `facts`.

        A file of words alone, as those that describe a package, counts as an empty one.
        """
        digest = hashlib.sha256(self.entry.encode())
        for name, path in self.files.items():
            digest.update(f"\0{name}\0".encode())
            content = path.read_bytes()
            digest.update(b"" if ONLY_WORDS.fullmatch(content) else content)
        digest.update("\0".join(["", *facts]).encode())
        return digest.hexdigest()[:HASH_DIGITS]

    def copy_to(self, folder: Path) -> Path:
        """Writes the files into a folder; returns the entry there."""
        for name, path in self.files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        return folder / self.entry


def imports_of(file: Path, home: Path, folders: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Yields the files that a Mojo file imports, each after the folder it was found from.

    Args:
        file: whose imports are read, wherever they stand in it.
        home: the folder that `file` was found from.
        folders: where names without leading dots are looked up.
    """
    for match in IMPORT.finditer(file.read_text(encoding="utf-8")):
        if match["modules"]:
            for module in COMMENT.sub("", match["modules"]).split(","):
                yield from _files_of(module.split()[0], (), [(f, f) for f in folders])
            continue
        listed = COMMENT.sub("", match["names"]).strip("() \n").split(",")
        names = [name.split()[0] for name in listed if name.strip()]
        if match["dots"]:
            places = [(home, file.parents[len(match["dots"]) - 1])]
        else:
            places = [(folder, folder) for folder in folders]
        yield from _files_of(match["module"], names, places)


def _files_of(
    module: str, names: Sequence[str], places: Sequence[tuple[Path, Path]]
) -> Iterator[tuple[Path, Path]]:
    """Yields the file of a module, or of a package and those of `names` that are modules in it."""
    for home, base in places:
        target = base.joinpath(*filter(None, module.split(".")))
        if target.is_dir():
            found = [target / "__init__.mojo"]
            for name in names:
                found += [target / f"{name}.mojo", target / name / "__init__.mojo"]
        else:
            found = [target.with_name(f"{target.name}.mojo")]
        if found[0].is_file():
            yield from ((home, path) for path in found if path.is_file())
            return


def _with_packages(home: Path, file: Path) -> list[tuple[Path, Path]]:
    """Returns a file and the packages around it, each after the folder it was found from."""
    inits = [folder / "__init__.mojo" for folder in file.parents if folder.is_relative_to(home)]
    return [(home, path) for path in (file, *inits) if path.is_file()]


@dataclass(frozen=True)
class Build:
    """One file of the cache."""

    key: str
    """The name of its folder: says what it is and hashes all that it depends on."""
    file_name: str
    doing: str
    """What is going on while it is made, for the user."""
    make: Callable[[Path], None]
    """Writes it to a path."""
    is_compiled: bool = True
    """Whether that takes the compiler."""

    def path(self, cache: Path | None = None) -> Path:
        """Returns where the file is or will be.

        Args:
            cache: the cache folder; None for `cache_folder()`.
        """
        return (cache or cache_folder()) / self.key / self.file_name

    def is_there(self, cache: Path | None = None) -> bool:
        """Says whether the cache has the file, whole or not.

        Raises:
            NativeBuildError: if another user could have put it there.
        """
        target = self.path(cache)
        folders = target.parent.parent, target.parent
        with _cache_errors(folders[0]):
            try:
                for path in (*folders, target):
                    if why_not := trust.objection(path, is_shared=path == folders[0]):
                        more = troubles("Install and build")
                        raise NativeBuildError(f"the build cache is not trusted: {why_not}; {more}")
            except FileNotFoundError:
                return False
        return True

    def find_or_make(
        self, cache: Path | None = None, *, wait: bool = True, is_quiet: bool = False
    ) -> Path | None:
        """Returns the path of the file.

        Args:
            cache: the cache folder; None for `cache_folder()`.
            wait: whether to wait for another process that is making it; if not, the answer
                is then None.
            is_quiet: whether nothing is said on stderr.

        Raises:
            NativeBuildError: if it cannot be made, or another user could have put it there.
        """
        cache = cache or cache_folder()
        target = self.path(cache)
        with _cache_errors(cache):
            if self.is_whole(cache):
                return target
            if self.is_there(cache) and not is_quiet:
                warn(f"{target} is not what was built: cut or changed, or its mark is missing")
            if self.is_compiled and not has_compiler():
                raise no_compiler(target)
            cache.mkdir(mode=0o755, parents=True, exist_ok=True)
            target.parent.mkdir(mode=0o755, exist_ok=True)
            self.is_there(cache)  # Nothing is written where others can write.
            lock = target.parent.with_name(f"{self.key}.lock")
            with only_one_process(lock, wait=wait) as turn:
                if turn is Turn.ANOTHERS:
                    return None
                if not self.is_whole(cache):
                    doing = one_line(f"{self.doing}, once, into {target.parent}")
                    with contextlib.nullcontext() if is_quiet else doing:
                        remove_leftovers(target.parent, 0 if turn is Turn.OURS else KEPT_SECONDS)
                        self._make(target)
                    forget_old(target.parent)
        return target

    def is_whole(self, cache: Path | None = None) -> bool:
        """Says whether the file can be used; the cache keeps what was asked for last.

        Raises:
            NativeBuildError: if another user could have put it there.
        """
        if not self.is_there(cache):
            return False
        target = self.path(cache)
        with _cache_errors(target.parent.parent):
            is_whole = trust.is_whole(target)
        with contextlib.suppress(OSError):
            os.utime(target.parent)
        return is_whole

    def _make(self, target: Path) -> None:
        """Lets the file appear complete or not at all."""
        # No TemporaryDirectory: at the end of a forked child, it would remove its parent's.
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=SCRATCH))
        try:
            fresh = scratch / target.name
            self.make(fresh)
            trust.keep(fresh, target.parent)
            os.replace(fresh, target)
            trust.sync(target.parent)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _cache_errors(cache: Path) -> Iterator[None]:
    """Says what to do where the system refuses to read or write the cache."""
    try:
        yield
    except OSError as error:
        remedy = "set MX_KERNELS_CACHE to a folder that you can write"
        if error.errno in FULL:
            remedy = "free some space, or set MX_KERNELS_CACHE to a folder on another disk"
        raise NativeBuildError(f"cannot use the build cache {cache} ({error}); {remedy}") from error


def remove_leftovers(folder: Path, seconds: float) -> None:
    """Removes what processes that died while they built left in a folder, if it is so old."""
    for path in folder.glob(f"{SCRATCH}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime >= seconds:
                shutil.rmtree(path)


def forget_old(newest: Path) -> None:
    """Removes what has the label of a folder of the cache, but for the last that were used."""
    label = newest.name.rpartition("-")[0]
    same = re.compile(re.escape(label) + f"-[0-9a-f]{{{HASH_DIGITS}}}")
    folders = [path for path in newest.parent.iterdir() if same.fullmatch(path.name)]
    last_used = {path: path.stat().st_mtime for path in folders}
    old = sorted(folders, key=last_used.get, reverse=True)[KEPT_OF_A_LABEL:]
    for path in old:
        if time.time() - last_used[path] > KEPT_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
            path.with_name(f"{path.name}.lock").unlink(missing_ok=True)


def cache_folder() -> Path:
    """Returns the folder of everything that is built: MX_KERNELS_CACHE or the user's cache.

    Raises:
        NativeBuildError: if the path begins with ~ and there is no such home folder.
    """
    named = os.environ.get("MX_KERNELS_CACHE")
    return absolute(named or platformdirs.user_cache_dir("mx_kernels"), "MX_KERNELS_CACHE")


def absolute(path: str, variable: str) -> Path:
    """Returns a path that an environment variable names, where no shell has expanded a ~.

    Raises:
        NativeBuildError: if it begins with ~ and there is no such home folder.
    """
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise NativeBuildError(
            f"there is no home folder for {path} ({error}); set {variable} to an absolute path"
        ) from error


def toolchain() -> str:
    """Returns the versions of what kernels are compiled from, besides our own sources.

    Without the compiler they are those that we ask for: what it made of them may be in the cache.

    Raises:
        NativeBuildError: if there is no compiler, and nothing says which one we ask for.
    """
    if not is_known():
        raise no_compiler()
    return " ".join(has_compiler() or _pins())


def is_known() -> bool:
    """Says whether this environment has the compiler, or says which one we ask for.

    A checkout that is not installed says nothing.
    """
    return all(has_compiler() or _pins())


def _pins() -> list[str]:
    """Returns the versions of Mojo and MAX that we ask for; empty where nothing says them."""
    return [_pinned(name).partition("==")[2] for name in TOOLCHAIN]


def has_compiler() -> tuple[str, ...]:
    """Returns the versions of Mojo and MAX; nothing unless both are installed."""
    try:
        return tuple(map(importlib.metadata.version, TOOLCHAIN))
    except importlib.metadata.PackageNotFoundError:
        return ()


def no_compiler(path: Path | None = None) -> NativeBuildError:
    """Returns what to raise where there is no compiler.

    Args:
        path: the file of the cache that it would have made; None for none in particular.
    """
    there = ""
    if path:
        folders = sorted(one.name for one in path.parents[1].glob(f"*-{'?' * HASH_DIGITS}"))
        there = f", and {path} is not in the cache, which has {', '.join(folders) or 'nothing'}"
    return NativeBuildError(
        f"the Mojo compiler is not installed in this environment{there}; it comes with `pip "
        f"install mx_kernels`, or install {_pinned('mojo')}, or fill the cache where there is one, "
        "for this CPU's level and this Python: `python -m mx_kernels build --level ...`; "
        f"{troubles('Install and build')}"
    )


def _pinned(name: str) -> str:
    """The requirement on Mojo or MAX, read from our own metadata."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for requirement in importlib.metadata.requires("mx_kernels") or []:
            if re.match(rf"{name}\b(?!-)", requirement):
                return requirement
    return name


def troubles(part: str) -> str:
    """Says where the documentation has more of an error, by a part of its page of troubles."""
    address = "docs/pages/index.md"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        links = importlib.metadata.metadata("mx_kernels").get_all("Project-URL") or ()
        address = dict(link.split(", ", 1) for link in links).get("Documentation", address)
    return f"{address.replace('index', 'troubleshooting')} has more, under {part!r}"


class Turn(enum.Enum):
    """Whether this process is the one that makes a file now."""

    OURS = enum.auto()
    ANOTHERS = enum.auto()
    UNKNOWN = enum.auto()
    """The file system has no locks: others may make the same at the same time."""


@contextlib.contextmanager
def only_one_process(lock_path: Path, *, wait: bool = True) -> Iterator[Turn]:
    """Holds an exclusive lock, if it can; the kernel releases it if the holder dies.

    The file is opened as it is, and not through a link, which might be another user's.
    """
    if lock_path.is_symlink():
        lock_path.unlink()
    lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    _open_locks.add(lock)
    try:
        yield _lock(lock, wait)
    finally:
        if lock in _open_locks:
            _open_locks.discard(lock)
            with contextlib.suppress(OSError):
                # Also where a process that forked from this one, not by way of Python, has it.
                fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


def _lock(lock: int, wait: bool) -> Turn:
    """Locks an open file; waits for others if it is asked to."""
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                return Turn.ANOTHERS
            with one_line("waiting for another process that is building the kernels"):
                fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        return Turn.UNKNOWN
    return Turn.OURS


_open_locks: set[int] = set()


def _leave_locks() -> None:
    """Closes what a forked child has of its parent's locks: they would outlive the parent."""
    while _open_locks:
        os.close(_open_locks.pop())


os.register_at_fork(after_in_child=_leave_locks)


LOG = logging.getLogger("mx_kernels")
"""Gets builds and waits at level INFO, what went wrong at WARNING."""


def warn(what: str) -> None:
    """Says something in a line: in the log where a program has set one up, else on stderr."""
    if LOG.hasHandlers():
        LOG.warning("%s", what)
    else:
        print(f"mx_kernels: {what}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def one_line(doing: str) -> Iterator[None]:
    """Says what is going on and, when it is over, how long it took.

    On stderr that is one line; a log has a record at the begin and one at the end.
    """
    start = time.perf_counter()
    outcome, is_logged = "failed", LOG.hasHandlers()
    if is_logged:
        LOG.info("%s", doing)
    else:
        print(f"mx_kernels: {doing} ... ", end="", file=sys.stderr, flush=True)
    try:
        yield
        outcome = "done"
    finally:
        ended = f"{outcome} after {time.perf_counter() - start:.1f} s"
        if is_logged:
            LOG.log(logging.INFO if outcome == "done" else logging.WARNING, "%s: %s", doing, ended)
        else:
            print(ended, file=sys.stderr, flush=True)


def compile_mojo(sources: Sources, command: Sequence[str], arguments: Sequence[str] = ()) -> str:
    """Compiles the entry of `sources`, seen alone with its imports; returns what is printed.

    Args:
        sources: the files that there are.
        command: the compiler's command and options; the entry follows them.
        arguments: what follows the entry.

    Raises:
        NativeBuildError: if the compiler is missing or fails; carries its output.
    """
    scratch = None
    try:
        scratch = tempfile.mkdtemp(prefix="mx_kernels-")
        entry = sources.copy_to(Path(scratch))
        return run_mojo([*command, "-I", scratch, str(entry), *arguments])
    except OSError as error:
        raise NativeBuildError(
            f"cannot copy the sources for the compiler ({error}); free some space there, or set "
            "TMPDIR to a folder that you can write"
        ) from error
    except NativeBuildError as error:
        # In the words of those who can change the files.
        text = str(error)
        for name, path in sources.files.items():
            text = text.replace(f"{scratch}/{name}", str(path))
        raise NativeBuildError(text) from None
    finally:
        # No TemporaryDirectory, see `Build._make`.
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def program_output(
    entry: Path,
    folders: Sequence[Path],
    options: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> Build:
    """Returns what a Mojo program prints, as a file of the cache.

    Args:
        entry: the program.
        folders: where its imports of ours are found; one of them has the program.
        options: of the compiler.
        arguments: of the program.
    """
    sources = Sources.of(entry, folders)
    return Build(
        f"{entry.stem}-{sources.digest([toolchain(), *options, '--', *arguments])}",
        f"{entry.stem}.txt",
        f"running {entry.name}",
        lambda target: target.write_text(compile_mojo(sources, ["run", *options], arguments)),
    )


def run_mojo(command: Sequence[str]) -> str:
    """Runs the Mojo compiler and returns what it prints.

    Raises:
        NativeBuildError: if the compiler is missing or fails; carries its output.
    """
    try:
        from mojo.run import subprocess_run_mojo  # noqa: PLC0415  only where a build is due

        result = subprocess_run_mojo(
            list(command), capture_output=True, text=True, preexec_fn=_end_with_parent
        )
    except (ImportError, OSError, RuntimeError) as error:
        raise NativeBuildError(
            f"the Mojo compiler cannot be started: {error}; reinstall {_pinned('mojo')}"
        ) from error
    if result.returncode != 0:
        raise NativeBuildError(_explain(command, result.stdout + result.stderr))
    return result.stdout


def _end_with_parent() -> None:
    """Asks Linux to end this process with the one that started it, however that ends."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _explain(command: Sequence[str], output: str) -> str:
    """Says why a build failed, with the compiler's own words at the end."""
    cause = f"the Mojo compiler failed; {troubles('Install and build')}"
    if os.strerror(errno.ENOSPC) in output:
        cause = (
            "the disk is full; free some space, or set MX_KERNELS_CACHE and TMPDIR to folders on "
            "another one"
        )
    elif not any(shutil.which(linker) for linker in LINKERS):
        cause = (
            "there is no C linker on PATH, which the Mojo compiler needs; install one "
            "(Debian and Ubuntu: apt install gcc; Fedora: dnf install gcc)"
        )
    return f"{cause}\n$ mojo {' '.join(command)}\n{output.strip()}"
