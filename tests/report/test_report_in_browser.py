"""The report in a real browser: theme, table, CSV, one trial, and a page that follows its study.

Slow, so not part of a plain run: ``pytest -m browser -n 0``.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpo_core.report import html_page
from hpo_core.report.study_page import LiveReport, write_report
from tests.deployed.test_browser import PATIENCE, page
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
def world() -> World:
    return World(failing=False)


@pytest.fixture
def report(world: World, tmp_path: Path) -> str:
    return write_report(world.play().entries(), tmp_path / "report.html").as_uri()


def column(page: Any, place: int) -> list[str]:
    found: list[str] = page.locator(f"{ROWS} td:nth-child({place})").all_inner_texts()
    return found


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


def test_a_trial_has_a_section_of_its_own(page: Any, errors: list[str], world: World, report: str) -> None:
    page.goto(report)
    page.wait_for_selector(ROWS)
    assert not page.is_visible("#trial")
    page.fill("#trials-filter", "trial=3")
    page.click(f"{ROWS} a")
    page.wait_for_selector("#trial-curve .main-svg")
    shown = page.inner_text("#trial")
    assert "Trial 3" in shown and "learning_rate" in shown and "Attempts" in shown
    assert "logs/trial-00003-attempt-0.log" in shown
    page.click("#trial >> text=Close")
    assert not page.is_visible("#trial")


def test_a_live_page_loads_itself_again(
    page: Any, errors: list[str], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html_page, "RELOAD_SECONDS", 0.3)
    live = LiveReport(world.journal, NAME, tmp_path / "live.html")
    live.write()
    page.goto((tmp_path / "live.html").as_uri() + "#trial-3")
    assert page.inner_text("#live") == "live" and "Nothing to draw yet" in page.inner_text("main")
    world.play(40)
    live.write()
    page.wait_for_selector("#incumbent .main-svg", timeout=PATIENCE)
    world.study.stop("enough")
    live.write()
    page.wait_for_function("document.getElementById('live').textContent === ''", timeout=PATIENCE)
    page.wait_for_selector("#trial-curve .main-svg", timeout=PATIENCE)
