"""A pin: one folder `patches/<release>/` of the repository, and what belongs to it."""

import re
from dataclasses import dataclass
from pathlib import Path

from overlaytool import lock as locks
from overlaytool.errors import Exit, Refusal
from overlaytool.patch import Patch, parse_patch

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Pin:
    """A release that the overlay is made for; `repository` is the folder that holds `patches/`."""

    repository: Path
    release: str

    @property
    def folder(self) -> Path:
        """`patches/<release>`."""
        return self.repository / "patches" / self.release

    @property
    def lock_file(self) -> Path:
        """The pin's lock."""
        return self.folder / "lock.toml"

    @property
    def earlier_file(self) -> Path:
        """What earlier revisions wrote, the same file for all pins."""
        return self.repository / "patches" / "earlier"

    @property
    def tree(self) -> Path:
        """Where `fetch` unpacks the pinned wheel."""
        return self.repository / "build" / f"sglang-{self.release}"

    @property
    def wheels(self) -> Path:
        """Where fetched wheels are kept."""
        return self.repository / "build" / "wheels"

    def lock(self) -> locks.Lock:
        """The pin's lock, read from disk, with what earlier revisions of any pin left."""
        return locks.load(self.lock_file, self.earlier_file)

    def series(self) -> list[str]:
        """Names of the patches, in order; `series` may hold blank lines and `#` comments."""
        file = self.folder / "series"
        try:
            lines = file.read_text().splitlines()
        except OSError as error:
            raise Refusal(f"cannot read {file}: {error.strerror}") from None
        names = [text for line in lines if (text := line.split("#")[0].strip())]
        if len(set(names)) != len(names) or any("/" in name for name in names):
            raise Refusal(f"{file} names a patch twice or outside its folder")
        return names

    def patches(self) -> list[Patch]:
        """The patches, parsed, in the order of the series."""
        return [parse_patch(name, self.patch_bytes(name)) for name in self.series()]

    def patch_bytes(self, name: str) -> bytes:
        """Bytes of one patch file."""
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            message = f"cannot read {self.folder / name}: {error.strerror}"
            raise Refusal(message) from None

    def overlay(self) -> dict[str, Path]:
        """The overlay's files, by the path that each takes in a tree."""
        base = self.repository / "overlay"
        files = sorted(file for file in base.rglob("*") if file.is_file())
        named = {file.relative_to(base).as_posix(): file for file in files}
        return {
            path: file
            for path, file in named.items()
            if "__pycache__" not in path and not file.name.startswith(".")
        }


def find(repository: Path, release: str | None) -> Pin:
    """The named pin, or the default one (`patches/default`); never inferred from a tree."""
    if release is None:
        release = (repository / "patches" / "default").read_text().strip()
    if release not in (pins := known(repository)):
        listed = ", ".join(pins) or "none"
        raise Refusal(f"there is no pin {release!r}: the pins are {listed}", Exit.USAGE)
    return Pin(repository, release)


def known(repository: Path) -> list[str]:
    """The releases that have a pin, the oldest first."""
    return sorted((file.parent.name for file in repository.glob("patches/*/series")), key=numbers)


def numbers(release: str) -> list[int]:
    """What orders releases."""
    return [int(digits) for digits in re.findall(r"\d+", release)]
