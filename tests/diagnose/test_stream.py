"""Reading: good, empty, truncated, damaged, foreign and odd files."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest
from diagnosetool import progress, stream
from diagnosetool.stream import EventStream, TraceError

from tests.diagnose.conftest import Make


def read(path: Path) -> tuple[list[dict[str, object]], EventStream]:
    source = EventStream(str(path))
    return list(source), source


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "trace.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 22])
def test_events_do_not_depend_on_where_chunks_end(
    trace: Make, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    path = trace(layers=2, steps=1)
    monkeypatch.setattr(stream, "CHUNK_BYTES", chunk)
    events, source = read(path)
    assert events == json.loads(path.read_text())["traceEvents"]
    assert source.header["deviceProperties"][0]["name"] == "NVIDIA H200"
    assert not source.truncated


def test_plain_and_gzip_files_give_the_same_events(trace: Make) -> None:
    assert read(trace("a.json"))[0] == read(trace("a.json.gz"))[0]


def test_gzip_is_told_by_content_not_by_name(tmp_path: Path, trace: Make) -> None:
    packed = tmp_path / "renamed.json"
    packed.write_bytes(trace("a.json.gz").read_bytes())
    assert len(read(packed)[0]) == len(read(trace("a.json"))[0])


def test_a_bare_list_of_events_is_a_trace(tmp_path: Path) -> None:
    assert len(read(written(tmp_path, '[{"ph": "X"}, {"ph": "i"}]'))[0]) == 2


def test_a_byte_order_mark_hides_nothing_of_the_header(tmp_path: Path, trace: Make) -> None:
    marked = written(tmp_path, b"\xef\xbb\xbf" + trace("plain.json").read_bytes())
    assert read(marked)[1].header["deviceProperties"][0]["name"] == "NVIDIA H200"


def test_members_after_the_events_are_in_the_header(tmp_path: Path) -> None:
    text = '{"traceEvents": [{"ph": "X"}], "deviceProperties": [{"name": "GPU"}]}'
    assert read(written(tmp_path, text))[1].header["deviceProperties"] == [{"name": "GPU"}]


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_a_truncated_file_gives_its_whole_events(trace: Make, tmp_path: Path, kept: float) -> None:
    path = trace()
    text = path.read_text()
    whole = json.loads(text)["traceEvents"]
    events, source = read(written(tmp_path, text[: int(kept * len(text))]))
    assert source.truncated
    assert events == whole[: len(events)]
    assert len(events) > 0.25 * len(whole)


def test_what_follows_the_packed_trace_does_not_cut_it(trace: Make, tmp_path: Path) -> None:
    path = tmp_path / "longer.json.gz"
    path.write_bytes(gzip.compress(trace().read_bytes()) + b"more")
    assert not read(path)[1].truncated


def test_a_truncated_gzip_file_gives_its_whole_events(trace: Make, tmp_path: Path) -> None:
    packed = trace("a.json.gz").read_bytes()
    events, source = read(written(tmp_path, packed[: len(packed) // 2]))
    assert source.truncated
    assert events


def test_a_gzip_file_cut_before_its_events_is_called_damaged(trace: Make, tmp_path: Path) -> None:
    packed = gzip.compress(b'{"schemaVersion": 1, ' + bytes(range(256)) * 400, 0)
    with pytest.raises(TraceError, match="damaged gzip data: copy it again"):
        read(written(tmp_path, packed[: len(packed) // 2]))


def test_an_event_that_is_not_json_is_left_out(tmp_path: Path) -> None:
    text = '{"traceEvents": [{"ph": "X", "dur": inf}, {"ph": "X", "dur": 2}]}'
    events, source = read(written(tmp_path, text))
    assert events == [{"ph": "X", "dur": 2}]
    assert (source.skipped, source.truncated) == (1, False)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"hello, world", "is not JSON"),
        (b"\x89PNG\r\n\x1a\n" + bytes(64), "is not JSON"),
        (b"5", 'has no "traceEvents"'),
        (b'{"results": [1, 2, 3]}', 'has no "traceEvents"'),
        (b'{"traceEvents": null}', 'has no "traceEvents"'),
        (b"\x1f\x8bnot gzip at all", "is damaged gzip data"),
        (gzip.compress(b"", mtime=0), "is empty"),
    ],
)
def test_a_foreign_file_is_refused_in_one_sentence(
    tmp_path: Path, content: bytes, says: str
) -> None:
    with pytest.raises(TraceError, match=says) as raised:
        read(written(tmp_path, content))
    assert str(raised.value).endswith(".")
    assert str(raised.value).count(". ") == 0


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read(tmp_path / "absent.json")
    with pytest.raises(TraceError, match="is a folder"):
        read(tmp_path)


def test_json_without_events_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "HEADER_LIMIT", 1000)
    monkeypatch.setattr(stream, "CHUNK_BYTES", 100)
    source = EventStream(str(written(tmp_path, '{"rows": [' + "1," * 100_000)))
    with pytest.raises(TraceError, match="traceEvents"):
        list(source)
    assert len(source._text) < 2000


def test_progress_goes_to_its_own_stream(trace: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    monkeypatch.setattr(stream, "CHUNK_BYTES", 1000)
    path, log = trace(), io.StringIO()
    list(EventStream(str(path), log))
    lines = log.getvalue().splitlines()
    assert len(lines) > 10
    assert all(line.startswith(f"reading {path}: ") and line.endswith("MB") for line in lines)
