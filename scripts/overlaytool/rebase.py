"""Landing a pin's patches on another release: a new pin folder, whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

from overlaytool import refresh, relock
from overlaytool.carry import LANDS
from overlaytool.drift import Drift
from overlaytool.errors import Exit, Refusal
from overlaytool.pin import Pin


def refreshed(drift: Drift) -> dict[str, bytes]:
    """The patch files for the target, by name, of every patch that is settled and not dropped."""
    label = drift.target.release or drift.target.name
    files = {}
    for carried in drift.carried:
        changes = [file.diff for file in carried.files if file.diff is not None]
        if carried.verdict in LANDS and changes:
            original = drift.pin.patch_bytes(carried.name)
            files[carried.name] = refresh.patch_bytes(original, label, changes)
    return files


def obstacle(drift: Drift) -> str | None:
    """Why the pin can't land, None where it can."""
    unsettled = [patch.name for patch in drift.carried if patch.verdict not in LANDS]
    if drift.target.release is None:
        return "the target is a folder; a pin needs a release's wheels"
    if (drift.pin.repository / "patches" / drift.target.release).exists():
        return f"patches/{drift.target.release} is there already"
    if drift.exit is Exit.UNTRIED:
        return "the contract could not be read"
    if drift.exit is Exit.CONTRACT:
        return "the contract is broken"
    return f"{', '.join(unsettled)} not settled" if unsettled else None


def land(drift: Drift) -> Path:
    """Writes `patches/<release>` with its lock; on any failure nothing of it stays.

    Raises `Refusal` (40) where the folder can't be written or the release's wheels can't be had.
    """
    release = drift.target.release
    assert release is not None, "obstacle() is asked first"
    pin = Pin(drift.pin.repository, release)
    try:
        pin.folder.mkdir()
        for name, content in _pin_files(drift).items():
            (pin.folder / name).write_bytes(content)
        relock.write(pin)
    except BaseException as error:
        shutil.rmtree(pin.folder, ignore_errors=True)
        if isinstance(error, OSError | Refusal):
            raise Refusal(f"no new pin, {pin.folder} is gone: {error}", Exit.UNTRIED) from error
        raise
    return pin.folder


def _pin_files(drift: Drift) -> dict[str, bytes]:
    files = refreshed(drift)
    series = "".join(f"{name}\n" for name in drift.pin.series() if name in files)
    contract = drift.contract.read_text("utf-8")
    text = contract.replace(f"sglang {drift.pin.release}", f"sglang {drift.target.release}")
    return {**files, "series": series.encode(), "contract.toml": text.encode()}
