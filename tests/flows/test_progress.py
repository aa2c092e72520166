"""The live board, the result lines and the ETA, on studies played in a small world."""

from __future__ import annotations

import io
import time
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from hpo_core import Outcome, Study
from hpo_core.execution.virtual import VirtualClock
from hpo_flows import progress
from hpo_flows.prefect_pages.study_tasks import expected_jobs, is_per_rung
from hpo_flows.progress import LiveBoard, Pace, PlainLines, remaining_units, standing
from tests.conftest import World, failed, fresh, make_spec
from tests.methods import SEARCHES, spec_of
from tests.views.test_rungs_view import HUNDRED

RANDOM = {"method": "random", "configs": 100, "max_resource": 10}


def told(study: Study, world: World, steps: int | None = None) -> list[str]:
    """The lines of a study, as a pipe would get them."""
    lines: list[str] = []
    plain = PlainLines(study, lines.append)
    running = study.set_capacity(world.workers) or study.state.wanted()
    while running and steps != 0:
        report = world.report(running.pop(world.random.randrange(len(running))))
        granted = study.tell_report(report)
        running += granted
        plain.on_report(report, granted)
        steps = None if steps is None else steps - 1
    plain.close()
    return lines


def shown(study: Study, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    board = LiveBoard(study, console)
    picture = board.board()
    board.stop()
    plain = Console(file=io.StringIO(), width=width)
    plain.print(picture)
    assert isinstance(plain.file, io.StringIO)
    return plain.file.getvalue()


def test_a_board_says_what_the_end_of_its_study_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It froze at the last result: "41 jobs done, ETA 2 s" for a minute."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    world = World(1)
    study = fresh(make_spec(search=RANDOM | {"configs": 3}), world=world)
    console = Console(file=io.StringIO(), width=100)
    board = LiveBoard(study, console)
    world.play(study)
    now = 107.0

    def drawn() -> str:
        plain = Console(file=io.StringIO(), width=100)
        plain.print(board.board())
        assert isinstance(plain.file, io.StringIO)
        return plain.file.getvalue()

    board.close()
    assert "3 jobs done in 7 s; ending, 0 s" in drawn() and "ETA" not in drawn()
    board.wait_for("copying to MLflow")
    now = 119.0
    assert "3 jobs done in 7 s; copying to MLflow, 12 s" in drawn(), "the seconds pass without a call"
    board.stop()
    board.wait_for("ending the workers")
    assert "copying to MLflow" in drawn(), "it has left the terminal"


def test_an_eta_is_said_once_each_slot_has_a_result_and_then_counts_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was said from the first result on, and climbed until the next one."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    world = World(1, workers=2)
    study = fresh(make_spec(search=RANDOM | {"configs": 10}), world=world)
    pace = Pace(study)
    world.play(study, steps=1)
    now = 20.0
    assert pace.eta_words() == "" and standing(study, pace).endswith(")")
    world.play(study, [*study.state.wanted()], steps=3)
    now = 40.0
    assert pace.eta_words() == ", ETA 1 min"
    now = 55.0
    assert pace.eta() == 45.0
    now = 101.0
    assert pace.eta() is None, "the next result is late"


@pytest.mark.parametrize("name", ["asha-shared", "stopping", "sha", "pasha", "pbt", "grid", "pareto-random"])
def test_every_method_has_lines_and_a_board(name: str) -> None:
    world = World(3, failures=0.05, nans=0.05)
    study = fresh(spec_of(name), world=world)
    lines = told(study, world, 12)
    assert len(lines) == 12 and "ETA" in lines[-1]
    text = shown(study)
    assert f"{study.state.completed_jobs} jobs done, {len(study.state.running)} running" in text
    assert "trained to" in text and len(text.splitlines()) <= 24
    told(study, world)
    assert remaining_units(study) == 0 and Pace(study).eta() == 0


def test_a_board_of_a_hundred_brackets_fits_a_terminal() -> None:
    world = World(1, workers=9)
    study = fresh(make_spec(search=HUNDRED), world=world)
    world.play(study, steps=700)
    text = shown(study)
    assert len(text.splitlines()) <= 24
    results = [row.split("/")[0].split()[-1] for row in text.splitlines() if "/" in row]
    assert sum(int(number.replace(",", "")) for number in results) == study.state.completed_jobs


def test_a_message_is_written_once_and_named_by_its_trial_later() -> None:
    world, written = World(1, workers=1), list[str]()
    study = fresh(make_spec(search=RANDOM), world=world)
    lines, (job,) = PlainLines(study, written.append), study.set_capacity(1)
    for message in ("no such file 1", "no such file 25", "another"):
        report = failed(job, Outcome.ERROR, message)
        granted = study.tell_report(report)
        lines.on_report(report, granted)
        job = granted[0]
    lines.close()
    assert [line.count("no such file") for line in written] == [1, 0, 0], written
    assert "trial 1: error: the same as trial 0 " in written[1] and "another" in written[2], written


def test_the_eta_is_that_of_the_first_rule_to_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock(1000.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(time=clock, monotonic=clock))
    study = Study.create(make_spec(search=RANDOM | {"configs": None}, stop={"seconds": 100}), clock=clock)
    world = World(1, workers=1)
    assert Pace(study).eta() == 100.0, "known from the first moment"
    world.play(study, steps=3)
    clock.now += 10.0
    assert Pace(study).eta() == 90.0
    endless = Study.create(make_spec(search=RANDOM | {"configs": None}, stop={"target": -1.0}), clock=clock)
    assert Pace(endless).eta() is None
    both = Study.create(make_spec(search=RANDOM, stop={"seconds": 1000}), clock=clock)
    pace = Pace(both)
    world.play(both, steps=10)
    clock.now += 5.0
    assert pace.eta() == pytest.approx(9 * 5.0), "the plan ends long before the rule"


@pytest.mark.parametrize(
    ("search", "stop", "jobs", "shown_by"),
    [
        (SEARCHES["asha"], {}, 24 + 8 + 2, "job"),
        (SEARCHES["asha-brackets"], {}, None, "job"),
        (HUNDRED, {}, 20 * (121 + 49 + 21 + 10 + 5), "rung"),
        (RANDOM, {"total_resource": 50}, 6, "job"),
        (RANDOM | {"configs": None}, {"seconds": 5}, None, "rung"),
        (RANDOM | {"configs": None}, {"total_resource": 50}, 6, "job"),
    ],
)
def test_expected_jobs_choose_the_grain(search: Any, stop: Any, jobs: int | None, shown_by: str) -> None:
    study = Study.create(make_spec(search=search, stop=stop))
    assert is_per_rung(study) == (shown_by == "rung")
    if jobs is not None:
        assert expected_jobs(study) == jobs
