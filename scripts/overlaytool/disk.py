"""All writes to a tree: staged next to their targets, then moved, so that each file is old or new.

A file of the tree is never opened for writing: a package manager may have hard-linked it to its
cache and to other environments, and `os.replace` leaves those their bytes.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from overlaytool.errors import Exit, Refusal
from overlaytool.tree import Tree


@dataclass(frozen=True)
class Change:
    """One file to write (`new` is its bytes) or to remove (`new` is `None`)."""

    path: str
    old: bytes | None
    new: bytes | None


@contextlib.contextmanager
def exclusive(tree: Tree) -> Iterator[None]:
    """Hold the tree against other runs of this tool; the kernel lets go when the process ends.

    The lock is on the folder itself, so that it leaves no file and works on a read-only tree.
    """
    folder = os.open(tree.package, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _take(folder, tree)
        yield
    finally:
        os.close(folder)


def _take(folder: int, tree: Tree) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(os.fstat(folder))
        message = f"{holder} is changing {tree.package}: try again when it is done"
        raise Refusal(message, Exit.BUSY) from None
    except OSError as error:
        message = f"cannot lock {tree.package}: {error.strerror}; copy the tree to a local disk"
        raise Refusal(message, Exit.UNWRITABLE) from None


def _holder(folder: os.stat_result) -> str:
    device = f"{os.major(folder.st_dev):02x}:{os.minor(folder.st_dev):02x}:{folder.st_ino}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and device in fields:
                return f"another run (process {fields[4]})"
    return "another run"


def commit(tree: Tree, changes: Sequence[Change]) -> None:
    """Make all changes, in order, or none of them.

    Raises `Refusal` (8) where the tree cannot be written. A kill between two moves leaves a tree
    whose files are each old or new.
    """
    done: list[Change] = []
    try:
        for change in changes:
            _stage(tree.file(change.path), change.new)
        for change in changes:
            done.append(change)
            _move(tree.file(change.path), change.new)
    except BaseException as error:
        paths = [change.path for change in changes]
        clean(tree, paths)  # first, as the disk may be full
        for change in reversed(done):
            with contextlib.suppress(OSError):  # the others may be writable
                _stage(tree.file(change.path), change.old)
                _move(tree.file(change.path), change.old)
        clean(tree, paths)
        if not isinstance(error, OSError):
            raise
        raise _unwritable(tree, changes, error) from None


def _unwritable(tree: Tree, changes: Iterable[Change], error: OSError) -> Refusal:
    left = [change.path for change in changes if tree.read(change.path) != change.old]
    state = f"the tree is left half-way, at {', '.join(left)}" if left else "the tree is as it was"
    remedy = "make it writable, with room, and run the verb again"
    where = error.filename or tree.package
    return Refusal(
        f"cannot write {where}: {error.strerror or error}; {state}: {remedy}", Exit.UNWRITABLE
    )


def clean(tree: Tree, paths: Iterable[str]) -> None:
    """Remove what a killed run left at these paths: staged files, and folders that are empty."""
    for path in paths:
        with contextlib.suppress(OSError):
            _staged(tree.file(path)).unlink()
        if not tree.link(path):
            _remove_empty(tree, tree.file(path).parent)


def _remove_empty(tree: Tree, folder: Path) -> None:
    with contextlib.suppress(OSError):
        while folder != tree.package.parent and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent


def _staged(target: Path) -> Path:
    return target.with_name(f".{target.name}.overlay-new")


def _stage(target: Path, data: bytes | None) -> None:
    if data is None:
        return
    _make_folder(target.parent)
    staged = _staged(target)
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        plain = os.path.lexists(target) and not target.is_symlink()
        like, bits = (target.lstat(), 0o7777) if plain else (target.parent.stat(), 0o666)
        _follow(staged, like, bits)
        os.fsync(fd)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir()
        _follow(folder, folder.parent.stat(), 0o7777)


def _follow(new: Path, like: os.stat_result, bits: int) -> None:
    """Give what is new the owner and the mode of what the tree has, whatever the umask says."""
    if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(PermissionError):
            os.chown(new, like.st_uid, like.st_gid)
    new.chmod(like.st_mode & bits)


def _move(target: Path, data: bytes | None) -> None:
    # Before the move, so that a kill in between cannot leave new source with old bytecode;
    # after it, because a process that imports right now may have written the old one again.
    _purge_bytecode(target)
    if data is None:
        target.unlink(missing_ok=True)
    else:
        _staged(target).replace(target)
    _purge_bytecode(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _purge_bytecode(target: Path) -> None:
    """Bytecode hides a new source if it is unchecked, or of a source of equal size and second."""
    cache = target.parent / "__pycache__"
    if not cache.is_dir():
        return
    for file in cache.iterdir():
        if file.name.startswith(f"{target.stem}."):
            file.unlink(missing_ok=True)
    if not any(cache.iterdir()):
        cache.rmdir()
