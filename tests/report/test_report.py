"""The report, on studies played in a small made-up training world with a virtual clock."""

from __future__ import annotations

import heapq
import json
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest

from hpo_core import MemoryJournal, Outcome, Report, Study
from hpo_core.model.errors import StorageError
from hpo_core.model.events import AttemptFailed, Entry, JobCompleted, JobGranted
from hpo_core.model.trial import Checkpoint, Job, Point
from hpo_core.report import write_report
from hpo_core.report.html_page import Section, card
from hpo_core.report.parameters import importances
from hpo_core.report.study_page import failure_rows, figures, render
from hpo_core.report.style import Figure
from hpo_core.views.series import Series, read_series

SPACE: dict[str, Any] = {
    "learning_rate": {"type": "float", "low": 1e-5, "high": 1.0, "log": True},
    "weight_decay": {"type": "float", "low": 1e-6, "high": 1e-1, "log": True},
    "dropout": {"type": "float", "low": 0.0, "high": 0.6},
    "layers": {"type": "int", "low": 1, "high": 6},
    "batch_size": {"type": "ordinal", "choices": [16, 32, 64, 128, 256]},
    "optimizer": {"type": "categorical", "choices": ["sgd", "adam", "rmsprop"]},
    "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": "sgd"}},
}
ASHA: dict[str, Any] = {
    "method": "asha", "configs": 60, "min_resource": 1, "max_resource": 27, "reduction_factor": 3,
}  # fmt: skip


class World:
    """Plays a study with ``slots`` workers; failures and divergence follow from the trial's number."""

    def __init__(
        self,
        *,
        search: dict[str, Any] = ASHA,
        slots: int = 4,
        mode: str = "min",
        space: dict[str, Any] = SPACE,
        failing: bool = True,
        diverging: bool = True,
        start: float = 1_760_000_000.0,
        metric: str = "val_loss",
        name: str = "digits-mlp",
        training: dict[str, Any] | None = None,
    ) -> None:
        self.now = start
        self.slots, self.mode, self.metric = slots, mode, metric
        self.failing, self.diverging = failing, diverging
        self.journal = MemoryJournal()
        plain = {"study": name, "metric": {"name": metric, "mode": mode}, "space": space, "search": search}
        plain["training"] = training or {}
        self.study = Study.create(plain, self.journal, clock=lambda: self.now)

    def entries(self) -> list[Entry]:
        return list(self.journal.entries(self.study.name))

    def value(self, job: Job, resource: int) -> float:
        """Depends mostly on the learning rate; falls with training."""
        params = job.params
        rate = params.get("learning_rate", 0.01)
        if self.diverging and rate > 0.5:
            return math.nan if resource > 1 or rate > 0.7 else (0.1 if self.mode == "max" else 3.0)
        off = abs(math.log10(rate) + 2.2)
        floor = 0.02 + 0.05 * off**2 + 0.1 * params.get("dropout", 0) * (params.get("optimizer") == "sgd")
        noise = random.Random(f"{job.trial}/{resource}").uniform(0.93, 1.07)
        loss = noise * (floor + 2.2 * math.exp(-resource / (1.5 + 2 * off)))
        return 1 / (1 + loss) if self.mode == "max" else loss

    def report(self, job: Job, worker: str, started: float) -> Report:
        origin = job.checkpoint.resource if job.checkpoint else 0
        luck = random.Random(f"{job.trial}.{job.attempt}.{job.target}").random()
        cost = 4 + (job.target - origin) * (3 + job.params.get("layers", 1)) * (0.8 + 0.4 * luck)
        common: dict[str, Any] = {"trial": job.trial, "attempt": job.attempt, "worker": worker, "started": started}
        if self.failing and luck < 0.06:
            outcome = Outcome.ERROR if job.trial % 2 else Outcome.CRASHED
            why = f"ValueError: width <b>{job.trial}</b> & more"
            return Report(outcome=outcome, message=why, ended=started + cost / 3, **common)
        points = tuple(Point(r, {self.metric: self.value(job, r)}) for r in range(origin + 1, job.target + 1))
        last = points[-1].metrics[self.metric]
        checkpoint = Checkpoint(f"t{job.trial}/{job.target}", "0" * 64, job.target, 1000)
        return Report(
            outcome=Outcome.COMPLETED if math.isfinite(last) else Outcome.DIVERGED,
            metrics={self.metric: last, "seconds": cost},
            curve=points,
            checkpoint=checkpoint,
            ended=started + cost,
            **common,
        )

    def play(self, reports: int = 10**9) -> World:
        """Run until nothing is left to do, or so many reports came back."""
        queue: list[tuple[float, int, Report]] = []
        free = [f"tcp://127.0.0.1:{40001 + k}" for k in range(self.slots)]

        def begin(jobs: list[Job]) -> None:
            for job in jobs:
                done = self.report(job, free.pop(0), self.now + 0.5)
                heapq.heappush(queue, (done.ended, done.trial, done))

        begin(self.study.set_capacity(self.slots))
        while queue and reports:
            reports -= 1
            ended, _, done = heapq.heappop(queue)
            self.now = ended + 0.2
            free.append(done.worker)
            begin(self.study.tell_report(done))
        self.study.check()
        return self


def html(*parts: Section | None) -> str:
    return "".join(card(part) for part in parts if part is not None)


def written(world: World, path: Path) -> str:
    series = read_series(world.entries())
    for figure in figures(series):
        json.dumps([figure.data, figure.layout], allow_nan=False)
        shown = figure.plotly()  # refuses what Plotly does not know
        assert shown.layout.title.text and len(shown.data) == len(figure.data)
    return write_report(world.entries(), path / "report.html").read_text(encoding="utf-8")


def quadratic() -> dict[str, Any]:
    return {"x": {"type": "float", "low": 0.0, "high": 1.0}}


def test_a_study_without_results_says_so(tmp_path: Path) -> None:
    page = written(World(), tmp_path)
    assert "Nothing to draw yet" in page and "no finite result yet" in page
    assert "hpo resume digits-mlp" in page


# What the figures say, against the journal.


def told(world: World) -> tuple[Series, dict[str, Figure]]:
    series = read_series(world.entries())
    return series, {figure.key: figure for figure in figures(series)}


def events(world: World, kind: type[Any]) -> list[Any]:
    return [event for entry in world.entries() for event in entry.events if isinstance(event, kind)]


@pytest.fixture(scope="module")
def played() -> World:
    return World().play()


def test_spans_are_the_attempts(played: World) -> None:
    series, drawn = told(played)
    assert len(series.spans) == len(events(played, JobGranted))
    ended = {(e.trial, e.attempt): (e.started, e.ended) for e in events(played, JobCompleted | AttemptFailed)}
    for span in series.spans:
        started, over = ended[span.trial, span.attempt]
        assert span.start == pytest.approx(started - series.began, abs=1e-3)
        assert span.end == pytest.approx(over - series.began, abs=1e-3)
    bars = [bar for trace in drawn["jobs"].data for bar in trace["x"]]
    assert len(bars) == len(series.spans)
    failed = next(trace for trace in drawn["jobs"].data if trace["name"] == "failed")
    assert len(failed["x"]) == played.study.state.failed_attempts > 0


def test_utilization_is_busy_time_over_offered_time(played: World) -> None:
    series, drawn = told(played)
    busy = sum(e.ended - e.started for e in events(played, JobCompleted | AttemptFailed))
    wall = played.entries()[-1].time - played.entries()[1].time
    assert series.utilization == pytest.approx(busy / (4 * wall), rel=1e-6)
    assert f"{100 * busy / (4 * wall):.0f}%" in drawn["jobs"].title


def test_importances_come_from_the_lowest_rung_with_enough_results(played: World) -> None:
    series, drawn = told(played)
    found = importances(series)
    assert found is not None and found.evaluator is not None
    assert found.resource == 1 and found.results == sum(e.resource == 1 for e in events(played, JobCompleted))
    assert next(iter(found.shares)) == "learning_rate" and set(found.shares) == set(SPACE)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert f"{found.results} results at resource 1 alone" in drawn["importances"].caption
    assert len(drawn["parallel"].data) == found.results + 1, "a line for each result, and the bar of colours"


def test_failures_are_listed_and_escaped(played: World) -> None:
    series, _ = told(played)
    state = played.study.state
    assert len(failure_rows(series)) == state.failed_attempts + state.abandoned_trials
    page = render(series)
    assert "width &lt;b&gt;" in page and "width <b>" not in page


def test_a_night_without_a_controller_is_cut_out() -> None:
    world = World(failing=False).play(20)
    before = read_series(world.entries())
    world.now += 36_000
    world.study.recover("host:2")
    series = read_series(world.entries())
    assert series.paused == pytest.approx(36_000) and series.wall == pytest.approx(before.wall)
    assert sum(span.outcome is Outcome.LOST for span in series.spans) == 4
    assert max(span.end for span in series.spans) <= series.wall + 1e-9
    assert "10 h in which no controller ran are cut out" in render(series)


def test_hostile_names_do_no_harm(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    space = {
        evil: {"type": "categorical", "choices": [evil, True, 1, None]},
        "x" * 200: {"type": "float", "low": 0.5, "high": 0.5},
        "steps": {"type": "int", "low": 1, "high": 100_000, "log": True},
        "one": {"type": "categorical", "choices": ["only"]},
    }
    world = World(space=space, metric=evil).play()
    links = {evil: f'https://x/"{evil}', "run": "JavaScript:alert(1)", "page": "other/report.html"}
    path = write_report(world.entries(), tmp_path / "deep" / "report.html", links=links)
    page = path.read_text(encoding="utf-8")
    told(world)
    assert "<img" not in re.sub("<script>.*?</script>", "", page, flags=re.DOTALL) and "</script><img" not in page
    assert page.count("</script>") == 4, "theme, data, Plotly, code"
    assert 'href="JavaScript' not in page and 'href="other/report.html"' in page
    assert list(path.parent.iterdir()) == [path]


def test_values_of_any_size_are_drawn(tmp_path: Path) -> None:
    for values in ([1e300, -1e300, 0.0], [1e-320, 1e308], [0.0, 0.0], [math.inf, 1.0, -math.inf], [-1.0, -1e-9]):
        world = World(space=quadratic(), search={**ASHA, "configs": 30}, failing=False, diverging=False)
        world.value = lambda job, _, values=values: values[job.trial % len(values)]  # type: ignore[method-assign]
        written(world.play(), tmp_path)


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    entries = World().entries()
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be written"):
        write_report(entries, tmp_path / "file" / "report.html")
    folder = tmp_path / "report.html"
    folder.mkdir()
    with pytest.raises(StorageError):
        write_report(entries, folder)
    assert not list(tmp_path.glob(".*tmp"))
