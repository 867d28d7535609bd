"""The pinned wheel: found and fetched with pip, checked by hash, unpacked."""

import contextlib
import csv
import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from overlaytool.errors import Exit, Refusal
from overlaytool.lock import Lock
from overlaytool.pin import Pin
from overlaytool.tree import PACKAGE

_HERE = f"Python {sys.version_info[0]}.{sys.version_info[1]}"


def wheel(pin: Pin, version: str, hashes: Mapping[str, str]) -> Path:
    """A wheel with one of these hashes, from `build/wheels` or else fetched for this interpreter.

    Raises `Refusal` (6) where pip has none, or one with another hash.
    """
    for name, sha256 in hashes.items():
        file = pin.wheels / name
        if file.is_file() and sha256_of(file) == sha256:
            return file
    flags = " ".join(f"--hash=sha256:{sha256}" for sha256 in sorted(set(hashes.values())))
    return download(f"{PACKAGE}=={version}", flags, pin.wheels)


def download(requirement: str, flags: str, folder: Path) -> Path:
    """A wheel that pip fetches for this interpreter; with hashes among the flags, by its hash.

    Raises `Refusal` (6).
    """
    with _staging(folder) as staging:
        listed = staging / "requirements.txt"
        listed.write_text(f"{requirement} {flags}\n")
        print(f"fetching {requirement} with pip", file=sys.stderr, flush=True)
        run = pip(["download", "-r", str(listed), "--dest", str(staging)])
        fetched = next(staging.glob("*.whl"), None)
        if run.returncode or not fetched:
            reason = f"pip could not fetch {requirement} ({last_line(run.stderr)})"
            remedy = "give it a network, or a folder of wheels with PIP_FIND_LINKS"
            if other := re.search(r"from (\S+\.whl).*\n\s*Expected sha256", run.stderr):
                reason = f"{other[1]} is not the wheel of the pin, or is damaged"
                remedy = "take it away, or put a good copy in its place"
            raise Refusal(f"{reason}: {remedy}", Exit.UNAVAILABLE)
        return fetched.replace(folder / fetched.name)


@contextlib.contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A folder for one process at a time, without what a killed one left in it."""
    folder.mkdir(parents=True, exist_ok=True)
    held, staging = os.open(folder, os.O_RDONLY | os.O_DIRECTORY), folder / ".fetch"
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    finally:
        os.close(held)


def pip(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run pip of this interpreter on wheels alone, without their requirements."""
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    command = [sys.executable, *_pip(), arguments[0], *options, *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _pip() -> list[str]:
    """What runs pip: the interpreter's own, or the one that it would install with ensurepip."""
    if importlib.util.find_spec("pip"):
        return ["-m", "pip"]
    bundled = importlib.util.find_spec("ensurepip")
    for folder in bundled.submodule_search_locations or () if bundled else ():
        for file in Path(folder, "_bundled").glob("pip-*.whl"):
            return [str(file / "pip")]
    message = f"{sys.executable} has no pip: install pip for it, or put the wheel in build/wheels"
    raise Refusal(message, Exit.UNAVAILABLE)


def last_line(text: str) -> str:
    """The line of pip's stderr that says what went wrong."""
    lines = [line for line in text.splitlines() if line.startswith("ERROR")] or text.splitlines()
    return lines[-1] if lines else "no message"


def sha256_of(file: Path) -> str:
    """sha256 of a file in hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def member(wheel_file: Path, path: str) -> bytes | None:
    """Bytes of one member of a wheel, or `None` where it has no such member."""
    try:
        with zipfile.ZipFile(wheel_file) as archive:
            return archive.read(path)
    except KeyError:
        return None
    except (OSError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"{wheel_file} is not a readable wheel ({reason}): name the wheel of the pin"
        raise Refusal(message, Exit.UNAVAILABLE) from None


def members(wheel_file: Path) -> frozenset[str]:
    """Names of all members of a wheel."""
    with zipfile.ZipFile(wheel_file) as archive:
        return frozenset(archive.namelist())


def unpack(pin: Pin, lock: Lock) -> tuple[Path, bool]:
    """The pin's tree in `build/`, for this interpreter, and whether it was unpacked now.

    A tree that is there is kept. Raises `Refusal` (6) where it lacks files of its wheel, or was
    unpacked for another Python.
    """
    unpacked = not pin.tree.is_dir() and _unpack(pin, lock)
    _refuse_unfit(pin.tree)
    return pin.tree, unpacked


def _unpack(pin: Pin, lock: Lock) -> bool:
    """Unpack the wheel, unless another process has done it by now."""
    fitting = {name: sha256 for name, sha256 in lock.wheels.items() if _fits(name)}
    if not fitting:
        message = f"sglang {lock.version} has no wheel for {_HERE}: run this with another Python"
        raise Refusal(message, Exit.UNAVAILABLE)
    with _staging(pin.tree.parent) as staging:
        if pin.tree.is_dir():
            return False
        with zipfile.ZipFile(wheel(pin, lock.version, fitting)) as archive:
            archive.extractall(staging / "tree")
        (staging / "tree").replace(pin.tree)
    return True


def _fits(tags: str) -> bool:
    """Whether this interpreter can import a wheel, by its file name or its `Tag:` line."""
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}-"
    return (python in tags or "py3-" in tags) and (platform.machine() in tags or "-any" in tags)


def _refuse_unfit(tree: Path) -> None:
    facts = next(tree.glob(f"{PACKAGE}-*.dist-info/WHEEL"), None)
    listed = next(tree.glob(f"{PACKAGE}-*.dist-info/RECORD"), None)
    rows = csv.reader(listed.read_text().splitlines()) if listed else ()
    if not (facts and rows and all((tree / row[0]).exists() for row in rows)):
        raise Refusal(
            f"{tree} lacks files of its wheel: delete it, then `make fetch`", Exit.UNAVAILABLE
        )
    tags = re.findall(r"^Tag: (\S+)", facts.read_text(), re.MULTILINE)
    if not any(map(_fits, tags)):
        message = f"{tree} is for {', '.join(tags)}, this is {_HERE}: delete it, or use that Python"
        raise Refusal(message, Exit.UNAVAILABLE)
