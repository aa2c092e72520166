"""Processes that stay, in every way to train: the bits of fresh ones, and the costs of a GPU are paid once.

The driver's library is a stand-in that sleeps and takes memory as a context on a card does; all else is real.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from hpo_core.model.devices.inventory import Portion
from hpo_core.model.trial import Checkpoint, Job, Outcome, Report, Rung, Unit
from hpo_core.training.request import RankPlace
from hpo_core.training.worker import TrainerPool
from tests.cuda_stub.driver import Driver, build
from tests.job_requests import make_request
from tests.training.test_kept_faults import left, waiting_in
from tests.waiting import eventually, gone

HERE = str(Path(__file__).parent)
GIB = 1 << 30


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cuda"))


@dataclasses.dataclass
class Worker:
    """A pool of trainers on a computer with one GPU."""

    folder: Path
    driver: Driver
    module: str = "stub_gpu_objectives"
    pool: TrainerPool = dataclasses.field(default_factory=TrainerPool)

    def run(
        self, trial: int, attempt: int = 0, *, function: str = "train", target: int = 1,
        checkpoint: Checkpoint | None = None, parent: int | None = None, unit: Unit | None = None,
        process: Literal["fresh", "kept"] = "kept", lr: float = 0.01, study: str = "s", **more: Any,
    ) -> Report:  # fmt: skip
        job = Job(trial, attempt, Rung(0, 0), target, {"lr": lr, "do": function}, checkpoint, parent=parent, unit=unit)
        objective = function if ":" in function else f"{self.module}:dispatch"
        given: dict[str, Any] = {
            "pythonpath": (HERE,),
            "metric": "loss",
            "seed": 3,
            "grace": 2.0,
            "zygote_timeout": 30.0,
        }
        request = make_request(
            study=study, job=job, objective=objective, folder=str(self.folder / study), process=process,
            **{**given, **more},
        )  # fmt: skip
        report = self.pool.run(request)
        assert report.outcome is Outcome.COMPLETED, f"{report.message}\n{report.detail}"
        return report

    @property
    def waiting(self) -> list[int]:
        return waiting_in(self.pool)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path_factory.mktemp("driver"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in driver.variables(library).items():
            patch.setenv(name, value)
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        yield driver


@contextlib.contextmanager
def workers(driver: Driver, **changes: Any) -> Iterator[Worker]:
    worker = Worker(driver.folder, driver, **changes)
    yield worker
    tags = [trainer._tag for trainer in worker.pool._idle if trainer.pid]
    worker.pool.close_all()
    for tag in tags:
        eventually(lambda: not left(tag))  # noqa: B023


@pytest.fixture(scope="module")
def trainers(driver: Driver) -> Iterator[Worker]:
    """One worker for all ways to train: torch is imported once."""
    with workers(driver, module="kept_mode_objectives") as worker:
        yield worker


@pytest.fixture
def clean(driver: Driver) -> None:
    (driver.folder / "events").write_text("")


@pytest.fixture(scope="module")
def one_worker(driver: Driver) -> Iterator[Worker]:
    with workers(driver) as worker:
        yield worker


@pytest.fixture
def worker(one_worker: Worker, clean: None) -> Worker:
    for pid in one_worker.waiting:
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: gone(pid))  # noqa: B023
    return one_worker


def share(memory: int = 4 * GIB, **changes: Any) -> Portion:
    given = {"device": "GPU-a", "architecture": "A100", "compute": 250, "cores": 1000, "capacity": 70 * GIB}
    return Portion(**{**given, "memory": memory, "gpu": True, **changes})


def told(report: Report) -> tuple[Any, ...]:
    """What an attempt made, but for times and names."""
    digest = None if report.checkpoint is None else report.checkpoint.digest
    return report.metrics, report.curve, digest, report.warnings or ()


Way = Callable[..., list[Report]]


def plain(worker: Worker, **more: Any) -> list[Report]:
    return [worker.run(trial, **more) for trial in range(3)]


def population(worker: Worker, **more: Any) -> list[Report]:
    first = worker.run(0, target=2, **more)
    return [first, worker.run(1, target=4, checkpoint=first.checkpoint, parent=0, lr=0.03, **more)]


def hopping(worker: Worker, **more: Any) -> list[Report]:
    """Two models visit one partition in turn, twice."""
    (worker.folder / "part").write_text("2")
    reports: list[Report] = []
    for number in range(4):
        trial, before = number % 2, reports[-2].checkpoint if number > 1 else None
        unit = Unit("part", 0, 0, 1, number, state=f"hops/state-{trial}-{number}", hopped=before is not None)
        reports.append(
            worker.run(
                trial,
                target=1 + number // 2,
                unit=unit,
                checkpoint=before,
                function="train_on_partition",
                load="kept_mode_objectives:load",
                partition_folder=str(worker.folder),
                partitions=("part",),
                required="none",
                **more,
            )  # fmt: skip
        )
    return reports


def gangs(worker: Worker, **more: Any) -> list[Report]:
    """Two ranks on one computer; a gang after another one."""
    reports: dict[tuple[int, int], Report] = {}
    for trial in range(3):
        store = str(worker.folder / f"store-{trial}-{more['process']}")

        def one(rank: int, trial: int = trial, store: str = store) -> None:
            place = RankPlace(rank=rank, size=2, local_rank=rank, local_size=2, store=store)
            reports[trial, rank] = worker.run(trial, gang=place, **more)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [reports[key] for key in sorted(reports)]


@pytest.mark.parametrize(
    ("way", "processes"),
    [
        (population, 1), (hopping, 1),
        pytest.param(gangs, 2, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_each_way_to_train_pays_for_the_gpu_once(trainers: Worker, clean: None, way: Way, processes: int) -> None:
    worker = trainers
    for pid in worker.waiting:
        os.kill(pid, signal.SIGKILL)
    kept = way(worker, process="kept", study=way.__name__)
    assert len(worker.driver.contexts()) == processes == len(worker.waiting), [one.warnings for one in kept]
    assert set(worker.waiting) == set(worker.driver.contexts())
    fresh = way(worker, process="fresh", study=f"{way.__name__}-fresh")
    assert len(worker.driver.contexts()) > processes + 1, "a fresh process pays each time"
    assert [told(report) for report in kept] == [told(report) for report in fresh]


@pytest.mark.slow
def test_under_mps_another_part_of_the_gpu_needs_another_process(worker: Worker) -> None:
    """Its limits are read when the context is made."""
    parts: Sequence[tuple[int, int]] = ((250, 2 * GIB), (250, 2 * GIB), (500, 2 * GIB), (500, 3 * GIB), (500, 3 * GIB))
    for trial, (compute, memory) in enumerate(parts):
        worker.run(trial, portion=share(memory, compute=compute, mps="/pipes"))
    assert [words[2:] for words in worker.driver.events("context")] == [
        ["25", "0=2048M"], ["50", "0=2048M"], ["50", "0=3072M"]
    ]  # fmt: skip
    assert len(worker.waiting) == 1


def test_a_process_whose_context_broke_while_it_waited_is_replaced(worker: Worker) -> None:
    worker.run(0)
    (first,) = worker.waiting
    worker.driver.break_context(first)
    worker.run(1)
    (second,) = worker.waiting
    assert second != first and gone(first) and worker.driver.contexts() == [first, second]
