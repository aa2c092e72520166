"""FakeTraining: reports for jobs without training, and studies to run with it."""

from __future__ import annotations

import random
from typing import Any

from hpo_core.journal.protocol import Journal
from hpo_core.model.trial import CURVE_POINTS, Job, Outcome, Point, Report
from hpo_core.search.method import Promote, Sample
from hpo_core.spec import StudySpec
from hpo_core.study import Study

STUDY = "contract"
"""Name of the studies that contract suites create."""


def example_spec(**changes: Any) -> StudySpec:
    """An ASHA study over three parameters; ``changes`` replace sections of its description."""
    plain: dict[str, Any] = {
        "study": STUDY,
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
    outcome = Outcome.COMPLETED if abs(loss) < float("inf") else Outcome.DIVERGED
    gain = float(sum(map(ord, repr(sorted(job.params.items())))) % 17)
    metrics = {"loss": loss, "gain": gain}
    return Report(trial=job.trial, attempt=job.attempt, outcome=outcome, metrics=metrics, **more)


def failed(job: Job, outcome: Outcome, message: str = "made to fail", **more: Any) -> Report:
    return Report(trial=job.trial, attempt=job.attempt, outcome=outcome, message=message, **more)


class FakeTraining:
    """Runs a study to its end: reports jobs in random order, with losses that follow from the parameters.

    Args:
        seed: of the order of reports and of the failures.
        workers: number of jobs that run at the same time.
        failures: probability, from 0 to 1, that an attempt fails (error, lost or crashed).
        nans: probability, from 0 to 1, that a result is NaN.
    """

    def __init__(self, seed: int = 0, *, workers: int = 4, failures: float = 0.0, nans: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.workers = workers
        self.failures = failures
        self.nans = nans
        self.now = 0.0

    def clock(self) -> float:
        """The virtual time in seconds; it advances with each report."""
        return self.now

    def loss(self, job: Job, resource: int | None = None) -> float:
        """Loss of a job, from its parameter ``x``; it falls with the resource.

        Args:
            resource: units of training; with it, a random part per trial makes learning curves cross.
        """
        at = resource or job.target
        noise = 0.0 if resource is None else 0.2 * random.Random(f"{job.trial}/{at}").random()
        return float(job.params["x"]) + 1.0 / at + noise

    def good(self, job: Job) -> Report:
        """A result with two metrics and a learning curve that ends at the target."""
        start = job.checkpoint.resource if job.checkpoint else 0
        steps = range(start + 1, job.target + 1)[-CURVE_POINTS:]
        loss = self.loss(job, job.target)
        curve = tuple(Point(at, {"loss": self.loss(job, at)}) for at in steps[:-1])
        curve += (Point(job.target, {"loss": loss}),)
        return completed(job, loss, curve=curve)

    def report(self, job: Job) -> Report:
        """The report of a job: good, failed or NaN, as the probabilities say."""
        self.now += self.random.random()
        if self.random.random() < self.failures:
            return failed(job, self.random.choice([Outcome.ERROR, Outcome.LOST, Outcome.CRASHED]))
        if self.random.random() < self.nans:
            return completed(job, float("nan"))
        return self.good(job)

    def play(self, study: Study, jobs: list[Job] | None = None, *, steps: int | None = None) -> list[Job]:
        """Report jobs in random order until nothing runs, or ``steps`` times; return what still runs."""
        running = list(study.set_capacity(self.workers) if jobs is None else jobs)
        while running and steps != 0:
            job = running.pop(self.random.randrange(len(running)))
            running += study.tell_report(self.report(job))
            steps = None if steps is None else steps - 1
        return running


def new_study(spec: StudySpec, journal: Journal | None = None, training: FakeTraining | None = None) -> Study:
    return Study.create(spec, journal, clock=(training or FakeTraining()).clock)


def snapshot(study: Study) -> str:
    """All facts of a study as comparable text (NaN equals NaN)."""
    state = study.state
    action = study.method.next_action()
    return repr(
        (
            state.trials,
            state.running,
            list(state.waiting),
            state.capacity,
            state.extra_configs,
            state.halted,
            state.incumbent,
            state.front,
            state.completed_jobs,
            state.abandoned_trials,
            state.resource_used,
            study.seq,
            study.method.rungs(),
            action if isinstance(action, Sample | Promote) else type(action),
        )
    )
