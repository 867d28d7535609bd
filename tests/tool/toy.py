"""A small pinned release, with its wheel, patches and overlay, made in a temporary folder."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

from carrytool import make_lock
from overlaytool.lock import Lock
from overlaytool.pin import Pin

RELEASE = "1.2.3"
REGISTRY = "sglang/srt/registry.py"
CHOICES = "sglang/srt/choices.py"
BACKEND = "sglang/srt/compact/backend.py"
SUPPORT = "sglang/srt/compact/support.py"

UPSTREAM = {
    "sglang/__init__.py": "",
    "sglang/_version.py": f"__version__ = version = '{RELEASE}'\n",
    REGISTRY: "BACKENDS = {}\n\n\ndef register(name):\n    BACKENDS[name] = name\n",
    CHOICES: "CHOICES = [\n    'a',\n    'b',\n    'c',\n]\n",
    f"sglang-{RELEASE}.dist-info/METADATA": (
        f"Metadata-Version: 2.1\nName: sglang\nVersion: {RELEASE}\n"
    ),
    f"sglang-{RELEASE}.dist-info/WHEEL": (
        "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    ),
}
OVERLAY = {BACKEND: "from . import support\n", SUPPORT: "NAME = 'compact'\n"}

HEADER = f"""\
Description: one concern
 told in full on a second line
Why-not-a-plugin: there is no door
Upstream-Status: Inappropriate [out of tree]
Drop-when: upstream has it
Last-Rebased: sglang {RELEASE}
---
"""
REGISTRY_PATCH = f"""\
{HEADER}--- a/{REGISTRY}
+++ b/{REGISTRY}
@@ -3,3 +3,6 @@
 
 def register(name):
     BACKENDS[name] = name
+
+
+register('compact')
"""
CHOICES_PATCH = f"""\
{HEADER}--- a/{CHOICES}
+++ b/{CHOICES}
@@ -2,4 +2,5 @@
     'a',
     'b',
     'c',
+    'compact',
 ]
"""
PATCHES = {"choices.patch": CHOICES_PATCH, "registry.patch": REGISTRY_PATCH}


def write_files(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())


def make_wheel(folder: Path, release: str, files: dict[str, str], project: str = "sglang") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{project}-{release}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        rows = "".join(_record(path, text.encode()) for path, text in files.items())
        archive.writestr(f"{project}-{release}.dist-info/RECORD", rows)
    return wheel


def _record(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"{path},sha256={digest},{len(data)}\n"


@dataclass(frozen=True)
class Toy:
    """The repository with its one pin, and a pristine tree beside it."""

    repository: Path
    tree: Path

    @property
    def pin(self) -> Pin:
        return Pin(self.repository, RELEASE)

    @property
    def wheel(self) -> Path:
        return self.pin.wheels / f"sglang-{RELEASE}-py3-none-any.whl"

    def file(self, path: str) -> Path:
        return self.tree / path

    def patch(self, name: str, text: str) -> None:
        (self.pin.folder / name).write_bytes(text.encode())

    def series(self, *names: str) -> None:
        (self.pin.folder / "series").write_text("\n".join(names) + "\n")

    def overlay(self, path: str, text: str) -> None:
        write_files(self.repository / "overlay", {path: text})


def make(folder: Path, upstream: dict[str, str] | None = None) -> Toy:
    files = UPSTREAM if upstream is None else upstream
    toy = Toy(folder / "repository", folder / "tree")
    wheel = make_wheel(toy.pin.wheels, RELEASE, files)
    write_files(toy.tree, files)
    write_files(toy.pin.folder, PATCHES)
    toy.series("# the order matters", *PATCHES)
    (toy.pin.folder.parent / "default").write_text(f"{RELEASE}\n")
    for folder in (toy.pin.repository, toy.pin.folder):  # what the overlay depends on: nothing yet
        (folder / "contract.toml").touch()
    write_files(toy.repository / "overlay", OVERLAY)
    pin_wheel(toy, wheel)
    return toy


def pin_wheel(toy: Toy, wheel: Path) -> None:
    """Locks the pin to this wheel."""
    wheels = {wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest()}
    toy.pin.lock_file.write_text(make_lock.dump(Lock(RELEASE, wheels, {}, ())))
    make_lock.write(toy.pin)


def commit(toy: Toy) -> None:
    """Commit the repository as it stands."""
    git = ["git", "-C", str(toy.repository), "-c", "user.name=n", "-c", "user.email=n@n"]
    for command in (["init", "-q"], ["add", "patches"], ["commit", "-qm", "more"]):
        subprocess.run([*git, *command], check=True)


def snapshot(root: Path) -> dict[str, tuple[int, str]]:
    """Mode and sha256 of every file and link below a folder, and the folders, by path."""
    found = {}
    for file in sorted(root.rglob("*")):
        data = b"" if file.is_dir() else file.read_bytes()
        found[str(file.relative_to(root))] = (
            file.lstat().st_mode,
            hashlib.sha256(data).hexdigest(),
        )
    return found


def install(toy: Toy, name: str, version: str) -> None:
    """Lay the metadata of a package beside the toy's sglang."""
    title = name.replace("_", "-")
    metadata = {f"{name}-{version}.dist-info/METADATA": f"Name: {title}\nVersion: {version}\n"}
    write_files(toy.tree, metadata)


def uninstall(toy: Toy, name: str) -> None:
    for file in toy.tree.glob(f"{name}-*.dist-info/METADATA"):
        file.unlink()
        file.parent.rmdir()


def torch_cuda(toy: Toy, value: str) -> None:
    write_files(toy.tree, {"torch/version.py": f"cuda: Optional[str] = {value}\n"})
