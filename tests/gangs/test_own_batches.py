"""Gangs whose ranks have a partition each: the same training as one process on the same batches."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpo_core.checkpoints import files
from hpo_core.model.hops import Unit
from hpo_core.model.trial import Checkpoint, Job, Outcome, Report, Rung
from hpo_core.training.process_group import gang_report
from hpo_core.training.ranks import parts_of_batches
from hpo_core.training.request import JobRequest, RankPlace
from hpo_core.training.worker import TrainerPool
from tests.gangs import hopping_lab

ROOT = Path(__file__).parents[2]
SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any)


@given(SIZES)
def test_batches_take_from_all_partitions_evenly(sizes: list[int]) -> None:
    merged = hopping_lab.merged([range(size) for size in sizes])
    one_by_one = list(parts_of_batches(sizes, 1))
    for count in range(len(merged) + 1):
        judged = [sum(rank == each for each, _ in merged[:count]) for rank in range(len(sizes))]
        assert [sum(parts[rank] for parts in one_by_one[:count]) for rank in range(len(sizes))] == judged


@given(SIZES, st.integers(1, 20))
def test_each_batch_is_whole_and_each_example_is_seen_once(sizes: list[int], batch_size: int) -> None:
    batches = list(parts_of_batches(sizes, batch_size))
    assert [sum(column) for column in zip(*batches, strict=True)] == sizes
    assert all(part >= 0 for parts in batches for part in parts)
    *whole, last = map(sum, batches)
    assert set(whole) <= {batch_size} and 0 < last <= batch_size
    for parts in batches:  # a rank is at most one example off its part of the batch, as far as the last one lets it
        share = [sum(parts) * size / sum(sizes) for size in sizes]
        assert all(abs(part - wanted) < 2 for part, wanted in zip(parts, share, strict=True))


class Units:
    """Trains units on any number of partitions, a rank on each, in the processes of one pool."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder, self.names = folder, names
        self.pool = TrainerPool()
        self._number = -1

    def train(
        self, parts: Sequence[str], function: str = "train", *, start: Checkpoint | None = None, **params: Any
    ) -> Report:
        self._number += 1
        size, store = len(parts), str(self.folder / uuid.uuid4().hex)
        reports: list[Report | None] = [None] * size
        if start is not None:
            start = msgspec.structs.replace(start, resource=0)  # within the first epoch

        def one(rank: int) -> None:
            unit = Unit(
                partition=parts[rank],
                index=self.names.index(parts[rank]),
                place=0,
                count=9,
                number=self._number,
                state=f"hops/trial-00000/unit-{self._number}",
                hopped=start is not None,
            )
            job = Job(0, self._number, Rung(0, 0), 1, {"lr": 0.1} | params, checkpoint=start, unit=unit)
            place = RankPlace(rank=rank, size=size, local_rank=rank, local_size=size, store=store)
            reports[rank] = self.pool.run(
                JobRequest(
                    study="lab",
                    job=job,
                    objective=f"tests.gangs.hopping_lab:{function}",
                    metric="loss",
                    seed=5,
                    folder=str(self.folder),
                    pythonpath=(str(ROOT),),
                    partition_folder=str(self.folder),
                    partitions=(parts[rank],),
                    gang=place if size > 1 else None,
                    stall_timeout=60.0,
                    grace=1.0,
                )
            )

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return gang_report([report for report in reports if report is not None])

    def weights(self, report: Report) -> dict[str, torch.Tensor]:
        assert report.outcome is Outcome.COMPLETED, report.message + report.detail
        assert report.checkpoint is not None
        state: dict[str, torch.Tensor] = files.load(self.folder, report.checkpoint, "hops")["tracked"]["model"]
        return state


@pytest.fixture
def units(tmp_path: Path) -> Iterator[Units]:
    before = set(psutil.Process().children(recursive=True))  # of tests before this one
    made = Units(tmp_path, hopping_lab.write_partitions(tmp_path, [90, 90, 41, 67]))
    yield made
    children = set(psutil.Process().children(recursive=True)) - before
    made.pool.close_all()
    assert not [child for child in psutil.wait_procs(children, timeout=600)[1] if child.is_running()]


@pytest.mark.slow
def test_units_of_any_number_of_ranks_train_what_one_process_trains_on_their_batches(units: Units) -> None:
    """Four, two, one, three: the state of each goes on with another number of ranks."""
    one, two, three, four = units.names
    groups = [(one, two, three, four), (three, one), (four,), (two, four, three)]
    start = None
    for group, judged in zip(groups, hopping_lab.trained_by_one(units.folder, groups, seed=5, lr=0.1), strict=True):
        report = units.train(group, start=start)
        found = units.weights(report)
        assert not report.warnings
        for name, value in judged.items():
            torch.testing.assert_close(found[name], value, rtol=2e-5, atol=2e-6)
        assert "ranks" not in files.load(units.folder, report.checkpoint, "hops"), "one random state for all"
        again = units.train(group, start=start)
        assert again.checkpoint is not None and report.checkpoint is not None
        assert again.checkpoint.digest == report.checkpoint.digest, "the same ranks give the same bits"
        start = report.checkpoint


@pytest.mark.slow
def test_a_unit_is_cancelled_alone(units: Units) -> None:
    """What is left of a gang is ended; the same attempt's next unit may run on the same worker."""
    units.pool.cancel(str(units.folder), 0, 1, unit=0)
    units.pool.cancel(str(units.folder), 0, 2, unit=2)
    assert units.train(units.names[:1]).outcome is Outcome.COMPLETED, "of another attempt"
    assert units.train(units.names[:1]).outcome is Outcome.COMPLETED, "of the same attempt, another unit"
    assert units.train(units.names[:1]).outcome is Outcome.PREEMPTED
    reports: list[Report] = []
    running = threading.Thread(target=lambda: reports.append(units.train(units.names[:1], "train_slowly")))
    running.start()
    while not units.pool.heartbeats():
        assert running.is_alive()
    assert not units.pool.cancel(str(units.folder), 0, 3, unit=7), "that one does not run"
    running.join()
    assert reports[0].outcome is Outcome.COMPLETED


@pytest.mark.slow
def test_a_metric_is_weighted_by_the_examples_of_each_rank(units: Units) -> None:
    report = units.train(units.names[:3])
    state = units.weights(report)
    model = hopping_lab.plain_net(8)
    model.load_state_dict(state)
    parts = [hopping_lab.load(units.folder / name) for name in units.names[:3]]
    with torch.no_grad():
        losses = [float(torch.nn.functional.cross_entropy(model(x), y)) for x, y in parts]
    counts = [len(x) for x, _ in parts]
    mean = sum(loss * count for loss, count in zip(losses, counts, strict=True)) / sum(counts)
    assert report.metrics["seen"] == pytest.approx(mean, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("alone", "ranks of the gang did not train together"),
        ("plain", "A gradient outside of trial.batches()"),
        ("shard", "trial.shard() divides a batch that all ranks have"),
        ("sizes", "trial.batches(): rank"),
    ],
)
def test_a_function_that_would_train_on_something_else_is_refused(units: Units, how: str, words: str) -> None:
    report = units.train(units.names[:2], "train_wrongly", how=how)
    assert report.outcome is Outcome.ERROR, report.message
    assert words in report.message
    if how != "sizes":
        assert "trial.batches(order, batch_size)" in report.message
    alone = units.train(units.names[:1], "train_wrongly", how=how)
    assert alone.outcome is Outcome.COMPLETED, "one rank trains as ever"
