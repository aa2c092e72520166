"""``Result``: best trials, tables and plots of all kinds of studies, compared with the journal by brute force."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

import hpo_core as hpo
from hpo_core.execution.in_process import InProcessExecutor
from hpo_core.execution.loop import Loop
from hpo_core.home import Home
from hpo_core.journal.codec import decode_entry
from hpo_core.journal.memory import MemoryJournal
from hpo_core.journal.protocol import Journal
from hpo_core.model.events import AttemptFailed, Entry, JobCompleted, JobGranted, TrialCreated
from tests.python.training import train

SPACE = {"x": hpo.Float(0, 1), "kind": hpo.Choice("a", "b")}
GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.jsonl"))
DRAWN = ["abandoned", "asha-brackets", "constrained", "exhausted", "gangs", "hopped", "pareto-asha-brackets", "pbt"]


class GoldenJournal(MemoryJournal):
    """A journal that holds one study, whatever it is asked for."""

    def __init__(self, entries: list[Entry]) -> None:
        super().__init__()
        self._entries = entries

    def entries(self, study: str, start: int = 0, stop: int | None = None) -> Iterator[Entry]:
        return iter(self._entries[start:stop])


class GoldenHome(Home):
    def __init__(self, folder: Path, entries: list[Entry]) -> None:
        super().__init__(folder)
        self._entries = entries

    def read_journal(self) -> Journal:
        return GoldenJournal(self._entries)


def test_a_result_can_be_copied_to_optuna(tmp_path: Path) -> None:
    kept = tuned(tmp_path, 3)
    nothing_kept = hpo.tune(train, SPACE, metric="loss", max_trials=3, home=None, progress=False)
    for result in (kept, hpo.load(kept.name, home=tmp_path), nothing_kept, nothing_kept.refresh()):
        copied = result.study.to_optuna()
        assert [trial.value for trial in copied.trials] == list(result.trials["loss"])
        assert copied.best_params == result.best.params


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_tables_hold_what_the_journal_says(path: Path, tmp_path: Path) -> None:
    """Hopping, populations, repeats, gangs, constraints, several objectives, failures, trials that run."""
    entries = [decode_entry(line) for line in path.read_text().splitlines()]
    result = golden(entries, tmp_path)
    created = [event for entry in entries for event in entry.events if isinstance(event, TrialCreated)]
    completed = [event for entry in entries for event in entry.events if isinstance(event, JobCompleted)]
    granted = [event for entry in entries for event in entry.events if isinstance(event, JobGranted)]

    trials = result.trials
    assert len(trials) == len(created)
    for event in created:
        row = trials.loc[event.trial]
        assert {name: row[f"params.{name}"] for name in event.params} == event.params
        assert row["attempts"] == sum(grant.trial == event.trial for grant in granted)
        assert same(row["parent"], event.parent)
        good = [one for one in completed if one.trial == event.trial and one.loss is not None and not one.violation]
        if good:
            best = min(good, key=lambda one: (one.loss, one.resource))
            assert row["at"] == best.resource
            for metric in result.spec.objectives:
                assert row[metric.name] == best.metrics.get(metric.name, row[metric.name])
        else:
            assert all(missing(row[metric.name]) for metric in result.spec.objectives)
            assert missing(row["at"])

    rows = result.results
    assert len(rows) == len(completed)
    for one in completed:
        found = rows[(rows["trial"] == one.trial) & (rows["resource"] == one.resource)].iloc[0]
        assert all(same(found[name], value) for name, value in one.metrics.items())

    ended = [event for entry in entries for event in entry.events if isinstance(event, JobCompleted | AttemptFailed)]
    jobs = result.jobs
    if len(jobs):
        over = jobs[jobs["outcome"] != "running"]
        assert sorted(zip(over["trial"], over["attempt"], strict=True)) == sorted(
            (one.trial, one.attempt) for one in ended
        )
        assert (over["seconds"] >= 0).all()

    if result.front:
        assert repr(result)
        assert [member.values for member in result.front] == [
            {metric.name: member.values[metric.name] for metric in result.spec.objectives} for member in result.front
        ]
        check_front(result, completed)
    else:
        with pytest.raises(hpo.HpoError, match="has no result"):
            _ = result.best


def golden(entries: list[Entry], folder: Path) -> hpo.Result:
    return hpo.Result("golden", GoldenHome(folder, entries))


def missing(value: Any) -> bool:
    return bool(pandas.isna(value))


def same(one: Any, other: Any) -> bool:
    return (missing(one) and missing(other)) or bool(one == other)


def check_front(result: hpo.Result, completed: list[JobCompleted]) -> None:
    """Nothing that was measured dominates a member of the front."""
    assert result.best.trial in [member.trial for member in result.front]
    if result.spec.best_of == "highest_rung":
        return
    signs = [(metric.name, metric.sign) for metric in result.spec.objectives]
    for one in completed:
        if one.loss is None or one.violation or any(name not in one.metrics for name, _ in signs):
            continue
        values = [sign * one.metrics[name] for name, sign in signs]
        for member in result.front:
            known = [sign * member.values[name] for name, sign in signs]
            assert not (all(a <= b for a, b in zip(values, known, strict=True)) and values != known)


@pytest.mark.parametrize("kind", DRAWN)
def test_plots_are_figures_or_say_that_there_is_nothing(kind: str, tmp_path: Path) -> None:
    from plotly.graph_objects import Figure

    (path,) = [path for path in GOLDEN if path.stem.startswith(f"{kind}-format")]
    plot = golden([decode_entry(line) for line in path.read_text().splitlines()], tmp_path).plot
    drawn = 0
    for name in ("history", "curves", "front", "rungs", "parallel", "importances", "slices", "jobs"):
        draw: Callable[[], Figure] = getattr(plot, name)
        try:
            figure = draw()
        except hpo.HpoError as error:
            assert "nothing for this picture" in str(error)
            continue
        assert isinstance(figure, Figure)
        assert figure.layout.title.text
        drawn += 1
    assert drawn or kind in ("abandoned", "exhausted")


def tuned(home: Path, trials: int = 4) -> hpo.Result:
    spec = hpo.StudySpec(
        study="study",
        objective="tests.python.training:train",
        metric=hpo.Metric("loss"),
        space=SPACE,
        search=hpo.Random(configs=trials),
        tracking=hpo.Tracking(mlflow="off"),
    )
    place = Home(home)
    journal = place.open_journal()
    study = hpo.Study.create(spec, journal)
    Loop(study, InProcessExecutor(spec, place.study_folder("study", create=True), train)).run()
    journal.close()
    return hpo.load("study", home)


def test_a_result_is_written_as_json_by_prefect_and_read_again(tmp_path: Path) -> None:
    from prefect.serializers import JSONSerializer

    result, serializer = tuned(tmp_path), JSONSerializer()
    written = serializer.dumps({"found": [result, result.best]})
    assert len(written) < 1000
    read, best = serializer.loads(written)["found"]
    assert isinstance(read, hpo.Result) and read.trials.equals(result.trials)
    assert isinstance(best, hpo.TrialResult) and best.params == result.best.params and best.value == result.best.value
    assert TypeAdapter(hpo.Result).validate_python(result) is result, "a parameter of a flow"
    temporary = hpo.Result("study", Home(tmp_path), temporary=True)
    with pytest.raises(PydanticSerializationError, match="temporary folder"):
        serializer.dumps(temporary)
    with pytest.raises(hpo.StudyNotFoundError):
        serializer.loads(written.replace(b'"study"', b'"other"', 1).replace(b': "study"', b': "other"'))


def test_a_result_without_a_home_cannot_be_sent_elsewhere_and_goes_with_its_object(tmp_path: Path) -> None:
    result = tuned(tmp_path / "home")
    temporary = hpo.Result("study", Home(tmp_path / "home"), temporary=True)
    with pytest.raises(hpo.HpoError, match="temporary folder"):
        pickle.dumps(temporary)
    best = temporary.best
    del temporary
    gc.collect()
    assert best.params == result.best.params  # it holds its study
    del best
    gc.collect()
    assert not (tmp_path / "home").exists()
