"""Executors that need no cluster: the contract. Dask's is judged in tests/flows/test_dask_executor.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpo_core.execution.executor import Executor
from hpo_core.execution.in_process import InProcessExecutor
from hpo_core.execution.virtual import VirtualClock, VirtualExecutor
from tests.conftest import make_spec
from tests.contract_suites.executor_contract import ExecutorContract


def train(trial: Any) -> None:
    trial.report(loss=trial.params["x"])


class TestVirtualExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self) -> Executor:
        return VirtualExecutor(
            VirtualClock(), workers=3, train=lambda job: {"loss": 0.5}, seconds=lambda job: 1.0, objectives=["loss"]
        )


class TestInProcessExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self, tmp_path: Path) -> Executor:
        return InProcessExecutor(make_spec(), tmp_path, train)
