"""Tables and pictures come from JSON files, and the repository's own are up to date."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.pictures import alone, by_batch, by_context, draw, roofline, served
from bench.report import RESULTS, ROOT, main, render
from bench.results import Results
from bench.tables import TABLES

DOCUMENTS = sorted([*ROOT.glob("README.md"), *ROOT.glob("docs/**/*.md")])


def record(setup: str, load: str, tpot: list[float], output: list[int]) -> dict[str, Any]:
    return {
        "setup": setup,
        "load": load,
        "host": {"device": "card"},
        "resolved": {"max_total_num_tokens": 5000},
        "tpot_ms": sorted(tpot)[1],
        "tpot_ms_all": tpot,
        "ttft_ms": 10.0,
        "ttft_ms_all": [10.0, 10.0, 10.0],
        "repeatable": True,
        "right_requests": None,
        "output": [output],
    }


ABOUT = {"model": "m", "layers": 4, "pool": 5000, "tokens": 3, "repeats": 3}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    records = [
        record("stock", "1x100", [70.0, 80.0, 72.0], [1, 2, 3]),
        record("compact", "1x100", [7.0, 10.0, 6.0], [1, 2, 3]),
        record("wrong-row", "1x100", [7.0, 7.0, 7.0], [1, 9, 3]),
    ]
    Results(tmp_path / "tokens.json", ABOUT, records).save()
    pair = [
        record("bf16", "1x100", [6.0, 5.0, 6.0], [1, 2, 3]),
        record("compact", "1x100", [6.6, 5.0, 6.0], [1, 2, 3]),
    ]
    Results(tmp_path / "bf16.json", ABOUT, pair).save()
    prefixed = [
        record("bf16", "1x9+5", [6.0, 5.0, 6.0], [1, 2, 3]),
        record("compact", "1x9+5", [6.0, 5.0, 6.0], [1, 2, 3]),
    ]
    Results(tmp_path / "prefix.json", ABOUT, prefixed).save()
    pools = [
        record("pool-131072", "1x100", [5.0, 5.0, 5.0], [1, 2, 3]),
        record("pool-2000000", "1x100", [5.0, 4.0, 5.0], [1, 2, 3]),
    ]
    Results(tmp_path / "pool.json", ABOUT, pools).save()
    return tmp_path


def test_table_holds_medians_ratios_of_pairs_and_verdicts(folder: Path) -> None:
    text = render("a\n<!-- bench:tokens -->\nold\n<!-- /bench -->\nb\n", folder)
    row = text.splitlines()[4]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["1x100", "72.00", "7.00", "10.00", "equal", "differ at request 0, token 1"]
    assert text.startswith("a\n<!-- bench:tokens -->\n| requests")
    assert text.endswith("|\n<!-- /bench -->\nb\n")


def test_ratio_is_the_median_of_pairs_with_its_range(folder: Path) -> None:
    text = render("<!-- bench:ratios -->\n<!-- /bench -->", folder)
    assert "| 1x100 | 6.00 | 1.000 (1.000 to 1.100) |" in text


def test_first_tokens_are_those_behind_a_cached_prefix(folder: Path) -> None:
    rows = render("<!-- bench:first-token -->\n<!-- /bench -->", folder).splitlines()[3:-1]
    assert rows == ["| 1x9+5 | off | 10.0 | 10.0 | 1.000 (1.000 to 1.000) |"]


def test_two_pools_are_compared_by_pairs(folder: Path) -> None:
    text = render("<!-- bench:pool -->\n<!-- /bench -->", folder)
    assert "| 1x100 | 5.00 | 5.00 | 1.000 (1.000 to 1.250) |" in text


def test_drafts_are_judged_by_the_step_and_by_the_token_and_one_long_request_apart(
    tmp_path: Path,
) -> None:
    """The other's steps are shorter, and give less: time a token is what shows it."""
    steps = {"compact": (18.0, 6.0), "bf16": (17.0, 8.5), "flashmla": (20.0, 20.0 / 3)}
    records = [
        record(setup, load, [token] * 3, [1]) | {"step_ms": step, "step_ms_all": [step] * 3}
        for load in ("1x65536", "16x8192")
        for setup, (step, token) in steps.items()
    ]
    Results(tmp_path / "speculation.json", ABOUT, records).save()
    text = render("<!-- bench:speculation -->\n<!-- /bench -->", tmp_path)
    cells = "18.00 | 3.00 | 6.00 | 1.059 (1.059 to 1.059) | 0.900 (0.900 to 0.900)"
    assert f"| 16x8192 | {cells} |" in text
    rows = render("<!-- bench:goals -->\n<!-- /bench -->", tmp_path).splitlines()[3:-1]
    verdicts = [row.split(" | ")[1:4] for row in rows]
    assert verdicts == [
        ["≤ 1.00", "1.0588", "missed at 16x8192"],
        ["≤ 0.90", "1.0588", "missed at 1x65536"],
        ["≤ 1.00", "0.9000", "met"],
        ["≤ 1.00", "0.7059", "met"],
        ["≤ 0.90", "0.7059", "met"],
        ["≤ 1.00", "0.9000", "met"],
    ]


def test_a_second_rendering_changes_nothing(folder: Path) -> None:
    once = render("<!-- bench:hosts -->\n<!-- /bench -->\n", folder)
    assert render(once, folder) == once


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    for name in TABLES:
        text = render(f"<!-- bench:{name} -->\n7 times faster\n<!-- /bench -->", tmp_path)
        assert "Not measured yet" in text
        assert "7 times" not in text


def test_proof_is_what_the_command_prints(folder: Path) -> None:
    (folder / "tokens.json").rename(folder / "proof.json")
    text = render("<!-- bench:proof -->\n<!-- /bench -->", folder)
    assert "1x100: 10.0 times as fast as FP8 as shipped" in text
    assert "tokens of FP8 compact and FP8 as shipped: equal" in text
    assert text.splitlines()[1] == "```text"


def write_kernels(folder: Path, *points: tuple[str, float]) -> None:
    """A file of these points, each with its floor in microseconds."""
    records = [
        {
            "point": point,
            "floor_us": floor,
            "active_tokens": 100_000,
            "copy_bytes_per_second": 4e12,
            "host": {"device": "card"},
            "pool_rows": 5000,
            "strategies": {
                "stock": {"us": [900.0, 800.0, 850.0]},
                "direct": {"us": [50.0, 40.0, 44.0]},
                "gather-alone": {"us": [130.0, 131.0, 132.0]},
                "bf16-fa3": {"us": [50.0, 50.0, 40.0]},
                "flashmla": {"failed": "no such card"},
            },
        }
        for point, floor in points
    ]
    (folder / "kernels.json").write_text(json.dumps({"points": records}))


def test_kernels_are_medians_and_what_failed_is_left_out(tmp_path: Path) -> None:
    write_kernels(tmp_path, ("16:1x100", 0.01))
    text = render("<!-- bench:kernels -->\n<!-- /bench -->", tmp_path)
    header = "| heads : requests x tokens | stock | BF16, fa3 | FlashMLA FP8 | direct | floor |"
    assert header in text
    assert "| 16:1x100 | 850.0 | 50.0 | - | 44.0 | 0.0 |" in text


def test_the_host_of_attention_alone_is_named(tmp_path: Path) -> None:
    write_kernels(tmp_path, ("16:1x100", 0.01), ("16:64x4096", 35.2))
    text = render("<!-- bench:hosts -->\n<!-- /bench -->", tmp_path)
    assert "- `kernels.json`: device card; pool 5000; 3 interleaved replays of each graph\n" in text


def test_kernels_are_compared_by_pairs_and_with_the_floor(tmp_path: Path) -> None:
    write_kernels(tmp_path, ("16:1x100", 0.01), ("16:64x4096", 35.2))
    rows = render("<!-- bench:kernel-ratios -->\n<!-- /bench -->", tmp_path).splitlines()[3:-1]
    ratio = "1.000 (0.800 to 1.100)"
    assert rows == [
        f"| 16:1x100 | {ratio} | - | - | - | - | - | - |",
        f"| 16:64x4096 | {ratio} | - | - | - | 1.25 | 81% | - |",
    ]


def test_attention_alone_is_drawn_at_16_heads_along_one_axis_at_a_time(tmp_path: Path) -> None:
    write_kernels(
        tmp_path,
        *((point, 2.0) for point in ("16:1x100", "16:1x8192", "16:16x8192", "8:1x65536")),
    )
    direct = by_context(alone(tmp_path))["direct"]
    assert direct == [(100, 44.0), (8192, 44.0)]
    assert by_batch(alone(tmp_path)) == {
        "stock": [(1, 850.0), (16, 850.0)],
        "bf16-fa3": [(1, 50.0), (16, 50.0)],
        "direct": [(1, 44.0), (16, 44.0)],
    }


def test_the_roofline_has_the_points_that_more_than_a_launch_bounds(tmp_path: Path) -> None:
    write_kernels(tmp_path, ("16:1x100", 0.01), ("16:64x4096", 35.2))
    ((intensity, tflops),) = roofline(tmp_path)["direct"]
    assert intensity == pytest.approx(16 * 2 * 1088 / 576)
    assert tflops == pytest.approx(16 * 2 * 1088 * 100_000 / 44e-6 / 1e12)


def test_a_setup_of_several_files_is_drawn_from_one(folder: Path) -> None:
    timings = [(name, str(load), time) for name, load, time in served(folder)]
    assert ("compact", "1x100", 6.0) in timings
    assert ("compact", "1x100", 7.0) not in timings
    assert ("stock", "1x100", 72.0) in timings


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("<!-- bench:speed -->\n<!-- /bench -->", "no table is named 'speed'"),
        ("<!-- bench:tokens -->\n", "has no <!-- /bench -->"),
    ],
)
def test_a_bad_marker_is_refused_and_the_file_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    document = tmp_path / "page.md"
    document.write_text(text)
    with pytest.raises(SystemExit) as end:
        main([str(document)])
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err
    assert document.read_text() == text


def test_check_tells_a_hand_edited_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = folder / "page.md"
    document.write_text("<!-- bench:tokens -->\n<!-- /bench -->\n")
    options = ["--results", str(folder), "--pictures", str(folder / "images"), str(document)]
    assert main(["--check", *options]) == 1
    assert "|" not in document.read_text()
    assert main(options) == 0
    assert main(["--check", *options]) == 0
    document.write_text(document.read_text().replace("72.00", "90.00"))
    assert main(["--check", *options]) == 1
    assert "page.md: holds other tables" in capsys.readouterr().out


def test_a_table_without_figures_is_kept_and_check_tells_it(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results"
    results.mkdir()
    page.write_text(text := "<!-- bench:pool -->\n| 1 |\n<!-- /bench -->\n")
    options = ["--results", str(results), "--pictures", str(tmp_path / "images"), str(page)]
    assert main(options) == 0
    assert page.read_text() == text
    assert main(["--check", *options]) == 1


def test_check_tells_a_picture_of_other_figures(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    images, page = folder / "images", folder / "page.md"
    page.write_text("<!-- bench:pool -->\n<!-- /bench -->\n")
    options = ["--results", str(folder), "--pictures", str(images), str(page)]
    assert main(options) == 0
    assert main(["--check", *options]) == 0
    (images / "pool.png").write_bytes((images / "tokens.png").read_bytes())
    (images / "bf16.png").unlink()
    assert main(["--check", *options]) == 1
    told = capsys.readouterr().out.splitlines()[-2:]
    assert told == [f"{images / name}.png: another picture" for name in ("bf16", "pool")]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--results", "nowhere", "{folder}/page.md"], "--results nowhere is not a folder"),
        (["--results", "{folder}", "{folder}/page.md", "nowhere.md"], "nowhere.md is not there"),
    ],
)
def test_what_is_not_there_is_refused_before_a_page_is_emptied(
    folder: Path, options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = folder / "page.md"
    page.write_text("<!-- bench:pool -->\n| 1 |\n<!-- /bench -->\n")
    given = [option.format(folder=folder) for option in options]
    with pytest.raises(SystemExit) as end:
        main(["--pictures", str(folder / "images"), *given])
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert "| 1 |" in page.read_text()


def test_pictures_are_drawn(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    write_kernels(folder, ("16:1x100", 0.01), ("16:1x8192", 1.2), ("16:16x8192", 17.8))
    draw(folder, folder / "images")
    drawn = sorted(path.stem for path in (folder / "images").iterdir())
    assert drawn == ["batch", "bf16", "context", "pool", "roofline", "tokens"]


def test_a_page_shows_the_pictures_that_are_there(tmp_path: Path) -> None:
    page = "<!-- bench:picture-pool -->\n<!-- /bench -->\n"
    assert "![" not in render(page, tmp_path, tmp_path / "images")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "pool.png").touch()
    shown = render(page, tmp_path, tmp_path / "images")
    assert shown.splitlines()[1].endswith("](images/pool.png)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tables_of_the_repository_are_those_of_its_json(document: Path) -> None:
    text = document.read_text()
    assert render(text, RESULTS) == text
