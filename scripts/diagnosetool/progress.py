"""A progress line on standard error, so that standard output stays the answer alone."""

from __future__ import annotations

import time
from typing import TextIO

TERMINAL_SECONDS = 0.2
LOG_SECONDS = 10.0


class Progress:
    """Reports how much of a file has been read: in place on a terminal, seldom in a log."""

    def __init__(self, label: str, total_bytes: int, stream: TextIO | None) -> None:
        """`total_bytes` is 0 where the size is unknown (a pipe); no `stream` means silence."""
        self._label = label
        self._total = total_bytes
        self._stream = stream
        self._in_place = stream is not None and stream.isatty()
        self._next = time.monotonic() + (TERMINAL_SECONDS if self._in_place else LOG_SECONDS)

    def update(self, done_bytes: int) -> None:
        if self._stream is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + (TERMINAL_SECONDS if self._in_place else LOG_SECONDS)
        share = f" of {self._total / 1e6:,.0f}" if self._total else ""
        line = f"reading {self._label}: {done_bytes / 1e6:,.0f}{share} MB"
        self._stream.write(f"\r{line}" if self._in_place else f"{line}\n")
        self._stream.flush()

    def close(self) -> None:
        if self._stream is not None and self._in_place:
            self._stream.write("\r\033[K")
            self._stream.flush()
