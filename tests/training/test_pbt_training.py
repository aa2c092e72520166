"""Population based training of what really learns: the two quadratics, and the example's network on the digits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from examples.pbt import train as example
from hpo_core import MemoryJournal, Study, StudySpec, load_spec
from hpo_core.checkpoints.storage import checkpoint_path
from hpo_core.model.trial import Checkpoint, Job, Metrics, Outcome, Rung
from hpo_core.samplers.sampler import RecordedSampler
from hpo_core.simulation import Simulation, VirtualClock
from hpo_core.training.attempt import run_attempt
from hpo_core.views.lineage import read_lineage
from tests.job_requests import make_request

ROOT = Path(__file__).parents[2]


def play(spec: StudySpec, train: Callable[[Job], Metrics], **more: Any) -> tuple[Study, MemoryJournal]:
    clock, journal = VirtualClock(), MemoryJournal()
    study = Study.create(spec, journal, clock=clock, sampler=more.pop("sampler", None))
    Simulation(study, clock, train=train, seconds=lambda job: 1.0, **more).run()
    study.check()
    return study, journal


def kept_as(job: Job) -> str:
    return checkpoint_path(job)


class Quadratics:
    """Jaderberg et al. 2017, section 4.4: 1.2 - t0^2 - t1^2 counts, its surrogate with weights h0, h1 is climbed."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, float]] = {}

    def train(self, job: Job) -> Metrics:
        t0, t1 = self._kept[job.checkpoint.uri] if job.checkpoint else (0.9, 0.9)
        for _ in range(job.target - (job.checkpoint.resource if job.checkpoint else 0)):
            t0, t1 = t0 * (1 - 0.04 * job.params["h0"]), t1 * (1 - 0.04 * job.params["h1"])
        self._kept[kept_as(job)] = t0, t1
        return {"q": 1.2 - t0 * t0 - t1 * t1}


def test_pbt_reaches_an_optimum_that_no_fixed_setting_reaches() -> None:
    limits = [Quadratics().train(Job(0, 0, Rung(0, 0), 300, {"h0": h0, "h1": 1 - h0})) for h0 in (0, 1)]
    assert [limit["q"] for limit in limits] == [pytest.approx(0.39, abs=1e-6)] * 2
    spec = StudySpec.from_plain({
        "study": "quadratics", "metric": {"name": "q", "mode": "max"}, "seed": 0,
        "space": {"h0": {"type": "float", "low": 0, "high": 1}, "h1": {"type": "float", "low": 0, "high": 1}},
        "search": {"method": "pbt", "population": 4, "generations": 75, "steps_per_generation": 4},
    })  # fmt: skip
    begin = RecordedSampler([{"h0": 1.0, "h1": 0.0}, {"h0": 0.0, "h1": 1.0}] * 2)
    study, _ = play(spec, Quadratics().train, sampler=begin, workers=2)
    assert study.best is not None and study.metric_value(study.best.loss) > 1.19


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As in a training process: on a busy machine two threads take a hundred times as long for such small tensors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def evolved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, MemoryJournal]:
    """The example with a smaller population, trained in this process."""
    plain = load_spec(ROOT / "examples/pbt/study.yaml").plain()
    plain["search"] |= {"population": 4, "generations": 5, "steps_per_generation": 1}
    spec = StudySpec.from_plain(plain)
    folder = str(tmp_path_factory.mktemp("study"))
    files: dict[str, Checkpoint | None] = {}

    def train(job: Job) -> Metrics:
        start = files[job.checkpoint.uri] if job.checkpoint is not None else None
        request = make_request(
            study=spec.study, job=msgspec.structs.replace(job, checkpoint=start), objective="examples.pbt.train:train",
            metric="val_loss", seed=spec.training_seed(job.trial), folder=folder,
        )  # fmt: skip
        report = run_attempt(example.train, request)
        assert report.outcome is Outcome.COMPLETED, report.detail
        files[kept_as(job)] = report.checkpoint
        return report.metrics

    return play(spec, train, workers=2)


def test_a_population_improves_its_loss(evolved: tuple[Study, MemoryJournal]) -> None:
    study, journal = evolved
    lineage = read_lineage(journal.entries(study.name))
    losses = [[t.loss for t in study.state.trials if lineage.births[t.number].generation == g] for g in (0, 4)]
    assert max(x for x in losses[1] if x is not None) < min(x for x in losses[0] if x is not None)
    assert study.best is not None and study.best.loss < 1.2


def test_a_script_that_follows_the_exported_schedule_gives_the_same_bits(evolved: tuple[Study, MemoryJournal]) -> None:
    """A trial and its ancestors are one training with changing parameters; the exported schedule is all it takes."""
    study, journal = evolved
    schedule = read_lineage(journal.entries(study.name)).schedule(study.best.trial)
    end = schedule[-1].end
    assert len({segment.trial for segment in schedule}) == end == study.best.resource >= 4
    torch.manual_seed(study.spec.training_seed(schedule[0].trial))
    model = example.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    for unit in range(end):
        now = next(one.params for one in schedule if one.start <= unit < one.end)
        optimizer.param_groups[0].update(lr=now["learning_rate"], momentum=now["momentum"])
        example.train_one_unit(model, optimizer)
    assert float(example.evaluate(model, example.valid)[0]) == study.best.metrics["val_loss"]
