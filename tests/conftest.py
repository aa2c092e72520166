"""Shared pieces of the tests: small worlds, and an environment that leaves the user's home alone."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hpo_core import Job, Outcome, Report, Study, StudySpec
from hpo_core.journal.protocol import Journal
from hpo_core.model.trial import CURVE_POINTS, Point


def pytest_configure() -> None:
    """Begun in the background of a script, tests would inherit an ignored Ctrl-C, and pass it on to what they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HPO_HOME", "HPO_JOURNAL", "PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    monkeypatch.setenv("DO_NOT_TRACK", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def make_spec(**changes: Any) -> StudySpec:
    """An ASHA study over three parameters, with any part replaced."""
    plain: dict[str, Any] = {
        "study": "world",
        "metric": {"name": "loss", "mode": "min"},
        "space": {
            "x": {"type": "float", "low": 0.0, "high": 1.0},
            "c": {"type": "categorical", "choices": ["a", "b"]},
            "d": {"type": "int", "low": 1, "high": 64, "log": True, "when": {"c": "a"}},
        },
        "search": {"method": "asha", "configs": 30, "min_resource": 1, "max_resource": 27, "reduction_factor": 3},
        "seed": 7,
    }
    return StudySpec.from_plain(plain | changes)


def completed(job: Job, loss: float, **more: Any) -> Report:
    """A good report of a job."""
    outcome = Outcome.COMPLETED if abs(loss) < float("inf") else Outcome.DIVERGED
    gain = float(sum(map(ord, repr(sorted(job.params.items())))) % 17)
    metrics = {"loss": loss, "gain": gain}
    return Report(trial=job.trial, attempt=job.attempt, outcome=outcome, metrics=metrics, **more)


def failed(job: Job, outcome: Outcome, message: str = "made to fail", **more: Any) -> Report:
    """A bad report of a job."""
    return Report(trial=job.trial, attempt=job.attempt, outcome=outcome, message=message, **more)


class World:
    """Plays a study to its end: random order of reports, losses from parameters, some failures."""

    def __init__(self, seed: int = 0, *, workers: int = 4, failures: float = 0.0, nans: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.workers = workers
        self.failures = failures
        self.nans = nans
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def loss(self, job: Job, resource: int | None = None) -> float:
        """Falls with the resource, with a wobble of its own per trial, so that curves cross."""
        at = resource or job.target
        wobble = 0.0 if resource is None else 0.2 * random.Random(f"{job.trial}/{at}").random()
        return float(job.params["x"]) + 1.0 / at + wobble

    def good(self, job: Job) -> Report:
        """A result: two metrics, and a learning curve that ends at the target."""
        start = job.checkpoint.resource if job.checkpoint else 0
        steps = range(start + 1, job.target + 1)[-CURVE_POINTS:]
        loss = self.loss(job, job.target)
        curve = tuple(Point(at, {"loss": self.loss(job, at)}) for at in steps[:-1])
        curve += (Point(job.target, {"loss": loss}),)
        return completed(job, loss, curve=curve)

    def report(self, job: Job) -> Report:
        self.now += self.random.random()
        if self.random.random() < self.failures:
            return failed(job, self.random.choice([Outcome.ERROR, Outcome.LOST, Outcome.CRASHED]))
        if self.random.random() < self.nans:
            return completed(job, float("nan"))
        return self.good(job)

    def play(self, study: Study, jobs: list[Job] | None = None, *, steps: int | None = None) -> list[Job]:
        """Report jobs in a random order until nothing runs (or ``steps`` reports); returns what still runs."""
        running = list(study.set_capacity(self.workers) if jobs is None else jobs)
        while running and steps != 0:
            job = running.pop(self.random.randrange(len(running)))
            running += study.tell_report(self.report(job))
            steps = None if steps is None else steps - 1
        return running


@pytest.fixture
def new_world() -> Callable[..., World]:
    return World


def fresh(spec: StudySpec, journal: Journal | None = None, world: World | None = None) -> Study:
    """A new study on a world's clock."""
    return Study.create(spec, journal, clock=(world or World()).clock)


@pytest.fixture
def study() -> Iterator[Study]:
    """A study whose invariants are checked at teardown."""
    made = fresh(make_spec())
    yield made
    made.check()


os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
