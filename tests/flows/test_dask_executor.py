"""Dask's executor: the contract, on a local cluster of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpo_core.execution.executor import Executor
from hpo_core.testing.executor_contract import ExecutorContract
from hpo_flows.dask.executor import DaskExecutor
from tests.conftest import make_spec
from tests.flows.conftest import ROOT


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
