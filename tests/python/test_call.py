"""``hpo_core.tune``: what may be trained, how it ends, and that shell and Python drive the same study."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest

import hpo_core as hpo
from hpo_core.home import Home
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.events import JobCompleted
from hpo_core.replay.rerun import rerun_spec
from tests.python.training import Trains, fails, fails_at_once, train

SPACE = {"x": hpo.Float(0, 1)}
QUIET: dict[str, Any] = {"home": None, "progress": False}
KEPT: dict[str, Any] = {"workers": 1, "prefect": "off", "tracking": hpo.Tracking(mlflow="off"), "progress": False}


class NeedsScale(Trains):
    """A class whose objects need an argument."""

    def __init__(self, scale: float) -> None: ...


async def waits(trial: hpo.Trial) -> None: ...


def yields(trial: hpo.Trial) -> Iterator[int]:
    yield from trial.steps()


@pytest.mark.parametrize(
    "objective",
    [
        pytest.param("tests.python.training:train", id="name"),
        pytest.param(lambda trial: train(trial), id="lambda"),
        pytest.param(functools.partial(train), id="partial", marks=pytest.mark.slow),
        pytest.param(Trains, id="class", marks=pytest.mark.slow),
        pytest.param(Trains(), id="object", marks=pytest.mark.slow),
    ],
)
def test_what_may_be_trained(objective: Any) -> None:
    result = hpo.tune(objective, SPACE, metric="loss", max_trials=2, **QUIET)
    assert result.status == "finished"
    assert result.best.value == pytest.approx((result.best.params["x"] - 0.3) ** 2 + 1)


def test_without_max_resource_a_training_is_what_the_function_does_and_a_loop_over_steps_is_warned_of() -> None:
    def learns(trial: Any) -> float:
        loss = float(trial.suggest_float("x", 1, 2))
        for epoch in range(5):
            loss /= 2
            trial.report(loss, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss

    whole = hpo.tune(learns, max_trials=1, **QUIET)
    assert whole.best.value == pytest.approx(whole.best.params["x"] / 32), "trained to its own end"
    journal = Home(whole.folder.parents[1]).read_journal()
    assert rerun_spec(list(journal.entries(whole.name)), "again").search.unit_is_whole()

    warned: list[Any] = []
    look = [lambda report: warned.append(report.warnings)]
    hpo.tune(train, SPACE, metric="loss", method=hpo.Random(configs=1), callbacks=look, **QUIET)
    assert "give max_resource of the search method, such as 27" in warned[0][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"objective": 3}, "objective = 3 cannot be called"),
        ({"objective": lambda: None}, "is called with one argument, the trial"),
        ({"objective": dict}, "class without __call__"),
        ({"objective": NeedsScale}, "missing 1 required positional argument: 'scale'. Give an object of it"),
        ({"objective": "train"}, "objective: 'train' is no module:function, such as train:train"),
        ({"objective": waits}, "a call only makes a coroutine"),
        ({"objective": functools.partial(yields)}, "a call only makes a generator"),
        ({"space": None}, "space is missing"),
        ({"space": [1]}, "space = a list of 1 is no mapping"),
        ({"space": {}}, "space: is empty; give at least 1 item"),
        ({"space": {"x": (0, 1)}}, "space['x'] = a tuple of 2 is no parameter; give hpo.Float(low, high)"),
        ({"space": {"group": {"x": 3}}}, "space['group']['x'] = 3 is no parameter"),
        ({"space": {"x": hpo.Float}}, "space['x'] = the class Float is no parameter"),
        ({"space": {1: hpo.Float(0, 1)}}, "space[1]: a parameter's name is text"),
        ({"metric": None}, "metric is missing"),
        ({"metric": 3}, "metric = 3 names none"),
        ({"metric": hpo.Metric("loss"), "mode": "max"}, 'here say hpo.Metric("loss", "max")'),
        ({"metric": ["size", hpo.Metric("loss")], "mode": "max"}, 'here say hpo.Metric("loss", "max")'),
        ({"metric": []}, "metric = a list of 0 names none"),
        ({"method": 3}, "method = 3 is no search"),
        ({"method": hpo.Asha}, "method = the class Asha is no search; give hpo.Asha("),
        ({"method": hpo.Random(configs=3), "max_trials": 4}, "max_trials = 4, but method has configs = 3"),
        ({"stop": hpo.Stop(seconds=3), "max_seconds": 4}, "max_seconds = 4, but stop has seconds = 3"),
        ({"workers": 2, "cluster": "tcp://h:1"}, "not both"),
        ({"cluster": 3}, "is no cluster"),
        ({"name": ""}, "study: '' is no name"),
        ({"sampler": optuna.samplers.TPESampler()}, 'give that of a sampler, such as "TPESampler"'),
        ({"callbacks": print}, "is no list; write callbacks=[...]"),
        ({"callbacks": [3]}, "callbacks holds 3, which cannot be called"),
        ({"constraints": "size"}, "constraints = 'size' is no list"),
        ({"journal": "sqlite:///x.db"}, "home=None keeps nothing"),
        ({"resume": True}, "give name="),
        ({"max_trials": None}, "the study would have no end; give max_trials"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_mistakes_are_refused_in_words_before_anything_starts(arguments: dict[str, Any], words: str) -> None:
    before = psutil.Process().children(recursive=True)
    given: dict[str, Any] = {"objective": train, "space": SPACE, "metric": "loss", "max_trials": 1, **QUIET} | arguments
    with pytest.raises(hpo.HpoError) as caught:
        hpo.tune(**given)
    assert words in str(caught.value)
    assert set(psutil.Process().children(recursive=True)) <= set(before)


def test_the_exception_of_the_first_trial_is_raised_with_the_user_s_traceback() -> None:
    with pytest.raises(hpo.ObjectiveError, match="FullError: the glass") as caught:
        hpo.tune(fails, SPACE, metric="loss", max_trials=60, **QUIET)
    (note,) = caught.value.__notes__
    assert "in trial 0" in note or "in trial 1" in note
    assert 'raise FullError("the glass")' in note  # the line of the user's file
    assert caught.traceback[-1].name == "called", "no frame of the program's inside"


def test_trials_that_fail_later_do_not_end_the_study_and_a_study_without_any_result_raises() -> None:
    result = hpo.tune(functools.partial(fails, first=2), SPACE, metric="loss", max_trials=4, workers=1, **QUIET)
    assert list(result.trials["state"]).count("abandoned") == 2
    with pytest.raises(hpo.HpoError, match="FullError: the glass.* home=None kept nothing of it"):
        hpo.tune(fails, SPACE, metric="loss", max_trials=6, fail_fast=False, **QUIET)


def test_callbacks_see_every_report_and_can_hurt_nothing() -> None:
    seen: list[tuple[int, dict[str, float]]] = []

    def look(report: hpo.Report) -> None:
        seen.append((report.trial, dict(report.metrics)))

    def raises(report: hpo.Report) -> None:
        raise RuntimeError("a callback fails")

    result = hpo.tune(train, SPACE, metric="loss", max_trials=4, callbacks=[raises, look], **QUIET)
    assert {trial: metrics["loss"] for trial, metrics in seen} == result.trials["loss"].to_dict()


def test_jobs_that_share_a_device_get_a_part_of_it(tmp_path: Path) -> None:
    """Once they were placed as if each had a slot of its own: nothing kept them from taking more than there is."""
    shared = hpo.Packing()
    hpo.tune(
        train, SPACE, metric="loss", max_trials=2, name="packed", packing=shared, home=tmp_path, **KEPT | {"workers": 2}
    )
    entries = Home(tmp_path).read_journal().entries("packed")
    done = [event for entry in entries for event in entry.events if isinstance(event, JobCompleted)]
    assert len(done) == 2
    assert all(isinstance(event.usage, Usage) and event.usage.device and event.usage.share for event in done)


def test_rules_that_end_the_study() -> None:
    result = hpo.tune(train, SPACE, metric="loss", max_trials=1000, target=2.0, **QUIET)
    assert (result.status, result.summary.rule) == ("halted", "target")
    assert result.best.value <= 2
    result = hpo.tune(train, SPACE, metric="loss", method="random", max_seconds=0.5, **QUIET)
    assert (result.status, result.summary.rule) == ("halted", "seconds")


def children() -> set[int]:
    """Process ids of this process's descendants that have not ended, without Python's own that ends with it."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            tracks = any("multiprocessing.resource_tracker" in part for part in process.cmdline())
            if process.status() != psutil.STATUS_ZOMBIE and not tracks:
                found.add(process.pid)
    return found


def test_home_none_keeps_nothing_and_leaves_no_process() -> None:
    before = children()
    result = hpo.tune(train, SPACE, metric="loss", max_trials=2, **QUIET)
    folder = result.folder
    assert folder.exists()
    assert result.mlflow_run_id is None
    assert not children() - before
    with pytest.raises(hpo.ObjectiveError, match="ValueError: .*on purpose"):  # while the other worker's attempt begins
        hpo.tune(fails_at_once, SPACE, metric="loss", max_trials=4, **QUIET)
    assert not children() - before
    del result
    assert not folder.exists()
    with pytest.raises(hpo.SpecError, match="home=None keeps nothing"):
        hpo.load("x", None)  # type: ignore[arg-type]


def test_changed_code_a_missing_module_and_other_settings_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, where = tmp_path / "changing.py", KEPT | {"home": tmp_path / "home"}
    file.write_text("def train(trial):\n    for _ in trial.steps():\n        trial.report(loss=trial.params['x'])\n")
    call: dict[str, Any] = {"metric": "loss", "max_trials": 1, "name": "changing", "pythonpath": [tmp_path], **where}
    hpo.tune("changing:train", space=SPACE, **call)
    differs = r"one: parameter y is here and not there; space.x.high is 1(.0)? there and 2(.0)? here\. name="
    with pytest.raises(hpo.StudyExistsError, match=differs):
        hpo.tune("changing:train", space={"x": hpo.Float(0, 2), "y": hpo.Int(1, 2)}, **call)
    with pytest.raises(hpo.SpecError, match="there is no module 'chnging' .* Did you mean 'changing'"):
        hpo.tune("chnging:train", space=SPACE, **call | {"name": "other"})
    with pytest.raises(hpo.SpecError, match="has no function 'trian'; did you mean 'train'"):
        hpo.tune("changing:trian", space=SPACE, **call | {"name": "other"})
    again: dict[str, Any] = {"configs": 1, "home": where["home"], "prefect": "off", "progress": False}
    hpo.resume("changing", **again)
    assert "was written after" not in caplog.text
    file.write_text(file.read_text() + "# changed\n")
    hpo.resume("changing", **again)
    assert f"{file} was written after the last entry of study 'changing'" in caplog.text


@pytest.mark.slow
def test_two_calls_at_once_and_one_within_a_running_event_loop() -> None:
    async def within_a_loop() -> hpo.Result:
        return hpo.tune(train, SPACE, metric="loss", max_trials=3, name="third", **QUIET)

    found: dict[str, hpo.Result] = {}

    def call(name: str) -> None:
        found[name] = hpo.tune(train, SPACE, metric="loss", max_trials=3, name=name, **QUIET)

    threads = [threading.Thread(target=call, args=[name]) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    found["third"] = asyncio.run(within_a_loop())
    for thread in threads:
        thread.join()
    assert {name: (one.name, one.status, len(one.trials)) for name, one in found.items()} == {
        "first": ("first", "finished", 3),
        "second": ("second", "finished", 3),
        "third": ("third", "finished", 3),
    }
