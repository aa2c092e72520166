"""Which oversubscription ratio is best is measured with real children, as a packed study runs them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from hpo_core import StudySpec
from hpo_core.execution.executor import Executor, Inbox, OnReport
from hpo_core.execution.ratio_tuning import RatioTuner, Together, best_of, checked_ratios, is_falling
from hpo_core.execution.requests import JobRequests
from hpo_core.model.devices.inventory import Capacity, Device, Inventory, Slot
from hpo_core.model.devices.usage import Usage
from hpo_core.model.errors import HpoError, SpecError
from hpo_core.model.trial import Job
from hpo_core.training.worker import TrainerPool

HERE = str(Path(__file__).parent)
MB = 1_000_000


class OneComputer:
    """Runs each job in a child process of this one, in a thread: a Dask worker without Dask.

    It says that each of its devices has two cores.
    """

    poll_seconds = 0.02
    sizes: ClassVar[dict[str, int]] = {"CPU": 400 * MB}
    """By architecture."""

    def __init__(self, pool: TrainerPool, spec: StudySpec, folder: Path) -> None:
        self._pool = pool
        self._requests = JobRequests(spec, str(folder))
        self._folder = str(folder)
        self.most = 0
        self._threads: list[threading.Thread] = []

    def inventory(self) -> Inventory:
        return Inventory(
            tuple(
                Device(name, 16, Capacity(node=name, architecture=name, memory=size, free=size, cores=2000))
                for name, size in self.sizes.items()
            )
        )

    def usages(self) -> Mapping[tuple[int, int], Usage]:
        found = {}
        for name, usage in self._pool.usages().items():
            trial, attempt = (int(part.rpartition("-")[2]) for part in name.split("/")[-2:])
            found[trial, attempt] = msgspec.convert(usage, Usage)
        return found

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        request = self._requests.of(job, slot.portion)
        thread = threading.Thread(target=lambda: on_report(job, self._pool.run(request)))
        self._threads.append(thread)
        thread.start()

    def limit(self, attempt: tuple[int, int], memory: int) -> None:
        self._pool.limit(*attempt, self._folder, memory)

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        for attempt in attempts:
            self._pool.cancel(*attempt, self._folder)

    def cancel_all(self) -> None:
        self._pool.cancel_study(self._folder)

    def now(self) -> float:
        return time.monotonic()

    def wait(self, inbox: Inbox, until: float) -> bool:
        inbox.wait(until - time.monotonic())
        return True

    def close(self) -> None:
        self.cancel_all()
        for thread in self._threads:
            thread.join()


@pytest.fixture(scope="module")
def pool() -> Iterator[TrainerPool]:
    pool = TrainerPool()
    yield pool
    pool.close_all()


def tuner(
    pool: TrainerPool,
    folder: Path,
    do: str,
    *,
    ratios: tuple[float, ...] = (1, 3),
    units: int | None = None,
    seconds: float = 0.2,
    **packing: Any,
) -> RatioTuner:
    plain = {
        "study": "s",
        "objective": "ratio_objectives:dispatch",
        "pythonpath": [HERE],
        "metric": {"name": "loss"},
        "space": {
            "do": {"type": "categorical", "choices": ["waits", "computes", "fails", "ends_at_once"]},
            "x": {"type": "float", "low": 0.0, "high": 1.0},
        },
        "search": {"method": "asha", "configs": 9, "max_resource": 100_000},
        "packing": {"devices": "cpu", "demand": {"memory": "20MB", "cores": 1}} | packing,
    }

    @contextlib.contextmanager
    def executors(spec: StudySpec, place: Path) -> Iterator[Executor]:
        executor = OneComputer(pool, spec, place)
        try:
            yield executor
        finally:
            executor.close()

    return RatioTuner(
        StudySpec.from_plain(plain),
        {"do": do, "x": 0.5},
        ratios=checked_ratios(ratios),
        seconds=seconds,
        units=units,
        executors=executors,
        folder=folder,
    )


def test_jobs_that_wait_gain_with_the_ratio(pool: TrainerPool, tmp_path: Path) -> None:
    found = tuner(pool, tmp_path, "waits").run()["CPU"]
    assert found.alone.jobs == 1
    assert [row.jobs for row in found.rows] == [2, 6], "a core each is claimed, of two"
    assert found.best.ratio == 3 and found.speedup > 2 and found.end == ""
    assert all(0 < row.memory < row.capacity == 400 * MB for row in found.rows)


def test_jobs_that_compute_gain_nothing(pool: TrainerPool, tmp_path: Path) -> None:
    found = tuner(pool, tmp_path, "computes", seconds=1.0).run()["CPU"]
    assert found.best.ratio == 1 and found.speedup == 1
    assert all(row.units_per_second < 230 for row in found.rows), "two processors, 100 units a second each"


def test_memory_ends_it(pool: TrainerPool, tmp_path: Path) -> None:
    found = tuner(pool, tmp_path, "waits", ratios=(1, 2, 4), demand={"memory": "130MB", "cores": 1}).run()["CPU"]
    assert [row.jobs for row in found.rows] == [2, 3], "400 MB hold three"
    assert found.end == "no room for more jobs at 4: memory 130 MB of 10 MB"


def test_each_architecture_has_a_ratio_and_an_end_of_its_own(
    pool: TrainerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneComputer, "sizes", {"CPU": 400 * MB, "CPU-old": 50 * MB})
    found = tuner(pool, tmp_path, "waits", ratios=(1, 2, 4), most=4).run()
    assert [row.jobs for row in found["CPU"].rows] == [2, 4] and found["CPU"].best.ratio == 2
    assert found["CPU"].end == "no room for more jobs at 4: packing.most = 4"
    assert [row.jobs for row in found["CPU-old"].rows] == [2] and found["CPU-old"].best.ratio == 1
    assert found["CPU-old"].end.startswith("no room for more jobs at 2: memory")


@pytest.mark.parametrize(
    ("do", "units", "message"),
    [
        ("fails", None, "ended with error: ValueError: no such data"),
        ("ends_at_once", 1, "take longer to start than to train"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    pool: TrainerPool, tmp_path: Path, do: str, units: int | None, message: str
) -> None:
    with pytest.raises(HpoError, match=message):
        tuner(pool, tmp_path, do, units=units).run()


def row(ratio: float, speed: float) -> Together:
    return Together(ratio=ratio, jobs=1, units_per_second=speed, memory=0, capacity=1)


def test_of_equal_throughputs_the_smallest_ratio_is_best() -> None:
    rows = [row(1, 10.0), row(1.5, 14.8), row(2, 15.0), row(3, 14.4)]
    assert best_of(rows).ratio == 1.5
    assert not is_falling(rows) and is_falling([*rows, row(4, 13.9)])


@pytest.mark.parametrize("ratios", [[0.5, 1], [1], [1, 101], [1, float("nan")], [1 + n / 10 for n in range(30)]])
def test_ratios_that_make_no_sense(ratios: list[float]) -> None:
    with pytest.raises(SpecError, match="--ratios"):
        checked_ratios(ratios)
