"""What of the cache is loaded: files that nobody else can have put there, and that are whole.

    <cache>/                    ours or root's, not for others to write unless it is sticky, as /tmp
        <label>-<hash>/         ours or root's, not for others to write
            <file>              the same
            sha256-<digest>     empty; says that a file with this content was whole when it was made

A mark is written before its file gets its name, and has no content that could be torn: what a
crash, a full disk or a copy leaves behind is a file without its mark, never one that passes.
Two processes that make the same file without a lock leave two marks, both true.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_PIECE = 1 << 20


def objection(path: Path, *, is_shared: bool = False) -> str:
    """Says what is wrong with a folder or file of the cache, and what to do; "" for nothing.

    Args:
        path: the folder or file; must not be a symbolic link.
        is_shared: whether `path` is the cache itself. It may be a link, and others may add to it
            where they cannot replace what is there.

    Raises:
        OSError: if there is no such path, or it cannot be looked at.
    """
    found = path.stat() if is_shared else path.lstat()
    us = os.geteuid()
    if stat.S_ISLNK(found.st_mode):
        return f"got a symbolic link at {path}, expected what was built; delete the link"
    expected = f"expected what is uid {us}'s or root's and nobody else can write"
    if found.st_uid not in (us, 0):
        return (
            f"got {path} of uid {found.st_uid}, {expected}; set MX_KERNELS_CACHE to a folder of "
            "your own"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & WRITABLE_BY_OTHERS and not (is_shared and mode & stat.S_ISVTX):
        return (
            f"got {path} with mode {mode:04o}, {expected}; set MX_KERNELS_CACHE to a new folder, "
            f"there for one, or, if you trust all who could write, chmod -R go-w {path}"
        )
    return ""


def is_whole(path: Path) -> bool:
    """Says whether a file's content is what was made: all of it is read, some 1 ms a MB."""
    return _mark_of(path, path.parent).exists()


def keep(path: Path, folder: Path) -> None:
    """Writes a new file's content and its mark in `folder` to the disk; others cannot write it."""
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~WRITABLE_BY_OTHERS)
    sync(path)
    _mark_of(path, folder).touch(mode=0o644)


def sync(path: Path) -> None:
    """Waits until a file's content, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _mark_of(path: Path, folder: Path) -> Path:
    """Returns the path in `folder` of what says that the content of a file is whole."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return folder / f"sha256-{digest.hexdigest()}"
