"""Dask's executor: the contract, on a local cluster of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpo_core.execution.executor import Executor, Inbox
from hpo_core.pool.seat import PoolSeat, Terms
from hpo_flows.dask.executor import DaskExecutor
from tests.conftest import make_spec
from tests.contract_suites.executor_contract import ExecutorContract
from tests.flows.conftest import ROOT
from tests.sharing.in_memory import MemoryPools, Wants


def test_what_is_held_for_a_time_is_lost_while_the_machine_sleeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock stands still meanwhile, and other controllers count on theirs."""
    executor = DaskExecutor(
        make_spec(objective="tests.flows.objectives:good", cluster={"kind": "local"}), str(tmp_path)
    )
    seat = PoolSeat(MemoryPools(), Terms(pool="p", study="s", owner="me"), Wants(wanted=100))
    seat.exchange(executor.now(), range(8))
    assert len(seat.open(executor.now())) == 8
    awake = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: awake(clock) + 3600 * (clock == time.CLOCK_BOOTTIME))
    assert len(seat.open(executor.now())) == 0
    began = time.monotonic()
    executor.wait(Inbox(), executor.now() + 0.05)
    assert 0.04 < time.monotonic() - began < 60


@pytest.mark.slow
class TestDaskExecutor(ExecutorContract):
    """The contract for the executor of real studies."""

    @pytest.fixture
    def executor(self, tmp_path: Path) -> Iterator[Executor]:
        for part in ("checkpoints", "logs"):
            (tmp_path / part).mkdir()
        spec = make_spec(
            objective="tests.flows.objectives:good", pythonpath=[str(ROOT)], cluster={"kind": "local", "workers": 2}
        )
        executor = DaskExecutor(spec, str(tmp_path))
        try:
            executor.start()
            yield executor
        finally:
            executor.close()
