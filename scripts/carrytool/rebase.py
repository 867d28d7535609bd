"""Landing a pin's patches on another release: a new pin folder, whole or not at all."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from overlaytool.errors import EXIT_HELP, Exit, Refusal
from overlaytool.pin import Pin, numbers

from carrytool import make_lock
from carrytool.drift import Drift


def refreshed(drift: Drift) -> dict[str, bytes]:
    """The patch files for the target, by name, of every patch that is settled and not dropped."""
    stated = f"\nLast-Rebased: sglang {drift.target.release}\n".encode()
    files = {}
    for carried in drift.carried:
        if carried.diff:
            head, _, _ = drift.pin.patch_bytes(carried.name).partition(b"\n---\n")
            head = re.sub(rb"\nLast-Rebased: .*\n", stated, head + b"\n")
            files[carried.name] = head + b"---\n" + carried.diff
    return files


def obstacle(drift: Drift) -> str | None:
    """Why the pin can't land, None where it can."""
    if drift.target.release is None:
        return "the target is a folder; a pin needs a release's wheels"
    if (drift.pin.repository / "patches" / drift.target.release).exists():
        return f"patches/{drift.target.release} is there already"
    if drift.exit is Exit.UNTRIED:
        return EXIT_HELP[drift.exit]
    if drift.changes and not drift.decisions.read:
        return f"{len(drift.changes)} changes to read: say --read once the overlay fits them"
    return f"{', '.join(drift.open)} not settled" if drift.open else None


def land(drift: Drift) -> Path:
    """Writes `patches/<release>` with its lock and contract; on any failure nothing of it stays.

    Raises `Refusal` (40) where the folder can't be written or the release's wheels can't be had.
    """
    pin = Pin(drift.pin.repository, str(drift.target.release))
    files = refreshed(drift)
    series = "".join(f"{name}\n" for name in drift.pin.series() if name in files)
    files["series"] = series.encode()
    try:
        pin.folder.mkdir()
        for name, content in files.items():
            (pin.folder / name).write_bytes(content)
        make_lock.write(pin)
        _list_pins(pin.repository)
    except BaseException as error:
        shutil.rmtree(pin.folder, ignore_errors=True)
        if isinstance(error, OSError | Refusal):
            raise Refusal(f"no new pin, {pin.folder} is gone: {error}", Exit.UNTRIED) from error
        raise
    return pin.folder


def _list_pins(repository: Path) -> None:
    """The README's line of pins, with the default one last."""
    readme = repository / "README.md"
    if not readme.exists():
        return
    default = (repository / "patches" / "default").read_text().strip()
    found = {file.parent.name for file in repository.glob("patches/*/series")} - {default}
    names = ", ".join(sorted(found, key=numbers))
    text = re.sub(
        r"^(Pins: sglang ).*?(, the default;)",
        rf"\g<1>{names} and {default}\2",
        readme.read_text("utf-8"),
        flags=re.MULTILINE,
    )
    staged = readme.with_name("README.new")
    staged.write_text(text, "utf-8")
    staged.replace(readme)
