"""The events of a Chrome trace one by one, in bounded memory, however large the file is."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import sys
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from io import BufferedReader
from pathlib import Path
from typing import Any, TextIO, cast

from diagnosetool.progress import Progress

CHUNK_BYTES = 1 << 22
HEADER_LIMIT = 1 << 25
EVENT_LIMIT = 1 << 20

Event = dict[str, Any]

_LIST_START = re.compile(r'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_EVENT_START = re.compile(r'\{\s*"(?:ph|cat|name)"\s*:')
_GZIP_MAGIC = b"\x1f\x8b"
_REMEDY = "give a trace that torch.profiler or sglang's /start_profile wrote (.json or .json.gz)"


class TraceError(Exception):
    """The file can't be read as a trace; the message is one sentence with the remedy."""


class EventStream:
    """Iterates over the events of a trace, plain or gzip, in file order.

    Attributes:
        header: the members next to the events (deviceProperties, versions); complete once the
            iteration is over, as merged traces put them last.
        truncated: the file ended inside the list of events, or its gzip data is damaged.
        skipped: events that are not valid JSON (some profilers wrote `inf`), left out.
    """

    def __init__(self, path: str, progress: TextIO | None = None) -> None:
        """Read `path`, or standard input when it is "-"; progress lines go to `progress`."""
        self.path = path
        self.header: dict[str, Any] = {}
        self.truncated = False
        self.skipped = 0
        self._progress = progress
        self._text = ""

    def __iter__(self) -> Iterator[Event]:
        """Yield each event; TraceError where the file is unreadable, empty or not a trace."""
        try:
            with _open(self.path) as raw, closing(self._chunks(raw)) as chunks:
                yield from self._events(chunks, self._find_list(chunks))
                cut = self.truncated
                self._read_tail(chunks)
                self.truncated = cut  # what follows the events is none of them
        except OSError as error:
            reason = error.strerror or str(error)
            raise TraceError(f"{self.path} can't be read ({reason}): {_REMEDY}.") from None

    def _chunks(self, raw: BufferedReader) -> Generator[str, None, None]:
        decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        size = _size(self.path)
        progress = Progress(self.path, size, self._progress)
        packed = raw.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
        source = gzip.GzipFile(fileobj=raw) if packed else raw
        done = 0
        try:
            # read() would lose what a damaged gzip file still holds; read1() hands it out first.
            while data := source.read1(CHUNK_BYTES):
                done += len(data)
                progress.update(raw.tell() if size else done)
                yield decode(data)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.truncated = True
        finally:
            progress.close()

    def _find_list(self, chunks: Iterator[str]) -> int:
        """Read up to the list of events; the position just after its bracket."""
        for chunk in chunks:
            self._text += chunk
            opening = self._text.lstrip()[:1]
            if opening == "[":
                return self._text.index("[") + 1
            if opening not in ("{", "") and not _is_json(self._text):
                raise TraceError(f"{self.path} is not JSON: {_REMEDY}.")
            if found := _LIST_START.search(self._text):
                self._read_header(self._text[: found.start()])
                return found.end()
            if len(self._text) > HEADER_LIMIT:
                break
        if self.truncated:
            raise TraceError(f"{self.path} is damaged gzip data: copy it again from its server.")
        if not self._text.strip():
            raise TraceError(f"{self.path} is empty: {_REMEDY}.")
        raise TraceError(f'{self.path} has no "traceEvents": {_REMEDY}.')

    def _events(self, chunks: Iterator[str], at: int) -> Iterator[Event]:
        decode = json.JSONDecoder().raw_decode
        text = self._text
        while True:
            at = cast("re.Match[str]", _BETWEEN.match(text, at)).end()
            if text[at : at + 1] == "]":
                self._text = text[at + 1 :]
                return
            try:
                event, at = decode(text, at)
            except (ValueError, RecursionError):
                more = next(chunks, "") if len(text) - at < EVENT_LIMIT else ""
                if more:
                    text, at = text[at:] + more, 0
                elif resume := _EVENT_START.search(text, at + 1):
                    self.skipped += 1
                    at = resume.start()
                else:
                    self.truncated, self._text = True, ""
                    return
                continue
            if isinstance(event, dict):
                yield event

    def _read_header(self, text: str) -> None:
        self._merge(text.strip().rstrip(",") + "}")

    def _read_tail(self, chunks: Iterator[str]) -> None:
        tail = (self._text + next(chunks, "")).strip()
        if tail.startswith(",") and len(tail) < EVENT_LIMIT:
            self._merge("{" + tail[1:])

    def _merge(self, text: str) -> None:
        try:
            self.header.update(json.loads(text))
        except (ValueError, RecursionError):
            return


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _open(path: str) -> BufferedReader:
    if path == "-":
        if sys.stdin is None:
            raise TraceError(f"standard input is closed: {_REMEDY}.")
        return cast(BufferedReader, sys.stdin.buffer)
    if Path(path).is_dir():
        raise TraceError(f"{path} is a folder: {_REMEDY}.")
    return Path(path).open("rb")


def _size(path: str) -> int:
    """Bytes of a regular file; 0 for a pipe or standard input."""
    return Path(path).stat().st_size if Path(path).is_file() else 0
