"""The report in a real browser: theme, table, CSV, one trial, and a page that follows its study.

Slow, so not part of a plain run: ``pytest -m browser -n 0``.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpo_core.journal.codec import decode_entry
from hpo_core.report import html_page
from hpo_core.report.comparison import Comparison, write_comparison
from hpo_core.report.study_page import LiveReport, write_report
from tests.deployed.test_browser import PATIENCE, page
from tests.golden.make import FOLDER as GOLDEN
from tests.report.packed_study import packed_study
from tests.report.test_compare import entries
from tests.report.test_report import World

__all__ = ["page"]

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]
NAME = "digits-mlp"
ROWS = "#trials tbody tr"


@pytest.fixture
def errors(page: Any) -> Iterator[list[str]]:
    """What the page complained of; a test that leaves any fails."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    yield found
    assert [line for line in found if "favicon" not in line] == []


@pytest.fixture
def world(tmp_path: Path) -> World:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "trial-00003-attempt-0.log").write_text("epoch 1: <b>loss</b> 0.5\n")
    return World(failing=False)


@pytest.fixture
def report(world: World, tmp_path: Path) -> str:
    """Address of the report of a study that has ended."""
    return write_report(world.play().entries(), tmp_path / "report.html", folder=tmp_path).as_uri()


def column(page: Any, place: int) -> list[str]:
    found: list[str] = page.locator(f"{ROWS} td:nth-child({place})").all_inner_texts()
    return found


def background(page: Any) -> str:
    found: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return found


def test_the_theme_is_changed_and_kept(page: Any, errors: list[str], world: World, report: str) -> None:
    page.goto(report)
    page.wait_for_selector("#rungs .main-svg")
    light, paper = background(page), "document.getElementById('rungs').layout.paper_bgcolor"
    assert page.evaluate(paper) == "#ffffff"
    page.click("#theme")
    dark = background(page)
    assert dark != light
    page.wait_for_function(f"{paper} === '#182029'")
    page.reload()
    page.wait_for_selector("#rungs .main-svg")
    assert background(page) == dark and page.evaluate(paper) == "#182029"


def test_the_table_is_sorted_filtered_and_downloaded(
    page: Any, errors: list[str], world: World, report: str, tmp_path: Path
) -> None:
    trials = world.study.state.trials
    page.goto(report)
    page.wait_for_selector(ROWS)
    assert page.locator(ROWS).count() == 50
    page.click("#trials-on")
    assert page.locator(ROWS).count() == len(trials) - 50
    page.click("#trials-back")
    assert column(page, 2)[0] == "winner", "the best one comes first"
    values = [float(cell) for cell in column(page, 3) if cell]
    assert values == sorted(values)
    page.locator("#trials th button", has_text="best val_loss").click()
    values = [float(cell) for cell in column(page, 3) if cell]
    assert values == sorted(values, reverse=True)

    page.fill("#trials-filter", "optimizer=adam trained_for>=3")
    wanted = {t.number for t in trials if t.params["optimizer"] == "adam" and t.results and t.results[-1].resource >= 3}
    assert set(map(int, column(page, 1))) == wanted and wanted
    with page.expect_download() as waiting:
        page.click("#trials-csv")
    assert waiting.value.suggested_filename == f"{NAME}-trials.csv"
    waiting.value.save_as(tmp_path / "trials.csv")
    rows = list(csv.DictReader((tmp_path / "trials.csv").open(newline="")))
    assert {int(row["trial"]) for row in rows} == wanted
    for row in rows:
        assert float(row["learning_rate"]) == trials[int(row["trial"])].params["learning_rate"], "with all digits"


@pytest.mark.parametrize("width", [1200, 400])
def test_devices_and_the_grid_are_drawn_and_saved(page: Any, errors: list[str], tmp_path: Path, width: int) -> None:
    path = tmp_path / "report.html"
    write_report(packed_study({"method": "grid"}, reports=9), path)
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(path.as_uri())
    for theme in ("light", "dark"):
        for key in ("grid", "jobs", "device-load"):
            page.locator(f"#{key}").scroll_into_view_if_needed()
            page.wait_for_selector(f"#{key} .main-svg")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{theme}: wider than the window"
        page.click("#theme")
    with page.expect_download() as waiting:
        page.click("button[data-csv]")
    assert waiting.value.suggested_filename == "packed-gpus-devices.csv"
    waiting.value.save_as(tmp_path / "devices.csv")
    rows = list(csv.DictReader((tmp_path / "devices.csv").open(newline="")))
    assert len(rows) == 3 and sum(int(row["jobs"]) for row in rows) == 12, "each point of the grid"
    assert sum(int(row["running"]) for row in rows) == 3
    assert all(row["memory claimed"].endswith("B") for row in rows)


def test_a_trial_has_a_section_of_its_own(page: Any, errors: list[str], world: World, report: str) -> None:
    page.goto(report)
    page.wait_for_selector(ROWS)
    assert not page.is_visible("#trial")
    page.fill("#trials-filter", "trial=3")
    page.click(f"{ROWS} a")
    page.wait_for_selector("#trial-curve .main-svg")
    shown = page.inner_text("#trial")
    assert "Trial 3" in shown and "learning_rate" in shown and "Attempts" in shown
    assert "epoch 1: <b>loss</b> 0.5" in shown, "as text"
    page.click("#trial >> text=Close")
    assert not page.is_visible("#trial")


def test_what_attempts_used_is_in_their_section_and_in_the_table(
    page: Any, errors: list[str], tmp_path: Path, world: World, report: str
) -> None:
    page.goto(report)
    page.wait_for_selector(ROWS)
    page.fill("#trials-filter", "trial=3")
    page.click(f"{ROWS} a")
    page.wait_for_selector("#trial-curve .main-svg")
    assert "used" not in page.locator("#trial th").all_inner_texts(), "nothing was measured"

    lines = (GOLDEN / "used-format-1.jsonl").read_text().splitlines()
    write_report([decode_entry(line) for line in lines], tmp_path / "used.html")
    page.goto((tmp_path / "used.html").as_uri() + "#trial-4")
    page.wait_for_selector("#trial-curve .main-svg")
    assert "used" in page.locator("#trial th").all_inner_texts()
    assert "of GPU-5d4e (A100) 3.89 GB, 28 % of its compute" in page.inner_text("#trial")
    assert {"memory MB", "cores", "seconds per unit"} <= set(page.locator("#trials th").all_inner_texts())


def test_a_live_page_loads_itself_again(
    page: Any, errors: list[str], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html_page, "RELOAD_SECONDS", 0.3)
    live = LiveReport(world.journal, NAME, tmp_path / "live.html", folder=tmp_path)
    live.write()
    page.goto((tmp_path / "live.html").as_uri())
    assert page.inner_text("#live") == "live" and "Nothing to draw yet" in page.inner_text("main")
    world.play(40)
    live.write()
    page.wait_for_selector("#incumbent .main-svg", timeout=PATIENCE)
    page.evaluate("location.hash = 'trial-3'")
    world.study.stop("enough")
    live.write()
    page.wait_for_function("document.getElementById('live').textContent === ''", timeout=PATIENCE)
    page.wait_for_selector("#trial-curve .main-svg", timeout=PATIENCE)


def test_nothing_is_cut_on_a_telephone(page: Any, errors: list[str], world: World, tmp_path: Path) -> None:
    names = [f"a-search-with-a-rather-long-name-of-{end}-1" for end in ("digits", "faces", "words", "birds", "trees")]
    found = Comparison.of([entries(name, 1) for name in names])
    path = write_comparison(found, tmp_path / "compare.html")
    page.set_viewport_size({"width": 400, "height": 900})
    page.goto(path.as_uri())
    page.evaluate("document.getElementById('by-resource').scrollIntoView()")
    page.wait_for_selector("#by-resource .main-svg")
    wide = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert page.evaluate(wide) == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    assert all(name in page.inner_text("header") for name in names)
