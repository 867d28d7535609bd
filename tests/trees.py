"""Trees of the pinned releases for tests: the bytes of the wheel, with this checkout's overlay.

They lie in `build/test` and are brought up to date in place, so that a run after the first one
finds its files compiled. What `build/sglang-<release>` holds is the user's business.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

from overlaytool import fetch
from overlaytool.patch import forward
from overlaytool.pin import REPOSITORY, find

Answer = TypeVar("Answer")

BUILT = REPOSITORY / "build" / "test"
PINS = tuple(sorted(file.parent.name for file in REPOSITORY.glob("patches/*/series")))


@cache
def wheel(release: str) -> Path:
    """The pinned wheel, fetched when it is not in `build/wheels`."""
    pin = find(REPOSITORY, release)
    lock = pin.lock()
    with _alone(f"wheel-{release}"):
        return fetch.wheel(pin, lock.version, lock.wheels)


@cache
def applied_tree(release: str) -> Path:
    """The folder to put on PYTHONPATH: the wheel of a pin, its patches and the overlay."""
    tree = BUILT / f"sglang-{release}"
    with _alone(f"tree-{release}"):
        _bring_up_to_date(tree, release, _overlaid(release))
    return tree


@cache
def pristine_tree(release: str) -> Path:
    """The same without patches and overlay."""
    tree = BUILT / f"pristine-{release}"
    with _alone(f"pristine-{release}"):
        _bring_up_to_date(tree, release, {})
    return tree


def _bring_up_to_date(tree: Path, release: str, overlaid: Mapping[str, bytes | None]) -> None:
    paths = tree / "overlaid-paths"
    names = "\n".join(sorted(overlaid))
    if not paths.is_file() or paths.read_text() != names:
        shutil.rmtree(tree, ignore_errors=True)
        with zipfile.ZipFile(wheel(release)) as archive:
            archive.extractall(tree)
        paths.write_text(names)
    for path, data in overlaid.items():
        _update(tree / path, data)


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Tests run in several processes: one at a time makes what all of them use."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _overlaid(release: str) -> dict[str, bytes | None]:
    pin = find(REPOSITORY, release)
    patches = pin.patches()
    patched = {path for patch in patches for path in patch.files}
    return {
        **{path: forward(patches, path, fetch.member(wheel(release), path)) for path in patched},
        **{path: file.read_bytes() for path, file in pin.overlay().items()},
    }


def _update(file: Path, data: bytes | None) -> None:
    if data is None:
        file.unlink(missing_ok=True)
    elif not file.is_file() or file.read_bytes() != data:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f".{file.name}.{os.getpid()}")
        beside.write_bytes(data)
        beside.replace(file)


def run_in_tree(
    tree: Path | None,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with `tree` as its sglang, as no test module may import it itself.

    The program may import modules of tests/ and of scripts/. Without `tree` it has to put one on
    its path.
    """
    variables = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    folders = (*([tree] if tree else []), REPOSITORY, REPOSITORY / "scripts")
    path = os.pathsep.join(map(str, folders))
    variables |= {"PYTHONPATH": path, **(environment or {})}
    return subprocess.run(
        [sys.executable, "-P", *map(str, arguments)],
        env=variables,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def on_each_pin(work: Callable[[str], Answer]) -> dict[str, Answer]:
    """What `work` returns for each pinned release, as many at once as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(PINS, pool.map(work, PINS), strict=True))
