"""The pinned wheel: found and fetched with pip, checked by hash, unpacked."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from overlaytool.errors import Exit, Refusal
from overlaytool.lock import Lock
from overlaytool.pin import Pin
from overlaytool.tree import PACKAGE


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
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as staging:
        listed = Path(staging) / "requirements.txt"
        listed.write_text(f"{requirement} {flags}\n")
        run = pip(["download", "-r", str(listed), "--dest", staging])
        fetched = next(Path(staging).glob("*.whl"), None)
        if run.returncode or not fetched:
            reason = f"pip could not fetch {requirement} ({last_line(run.stderr)})"
            message = f"{reason}: give it a network, or a folder of wheels with PIP_FIND_LINKS"
            raise Refusal(message, Exit.UNAVAILABLE)
        return fetched.replace(folder / fetched.name)


def pip(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run pip of this interpreter on wheels alone, without their requirements."""
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", arguments[0], *options, *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, check=False)


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
    """The pin's tree in `build/`, and whether it was unpacked now; an existing one is kept."""
    if pin.tree.is_dir():
        return pin.tree, False
    source = wheel(pin, lock.version, lock.wheels)
    with tempfile.TemporaryDirectory(dir=pin.tree.parent) as folder:
        with zipfile.ZipFile(source) as archive:
            archive.extractall(Path(folder) / "tree")
        (Path(folder) / "tree").replace(pin.tree)
    return pin.tree, True
