"""Every projection: the contract."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpo_core.tracking.mlflow_client import open_client
from hpo_core.tracking.mlflow_projection import MlflowProjection
from hpo_core.tracking.projection import Projection
from tests.contract_suites.fake_training import STUDY
from tests.contract_suites.projection_contract import ProjectionContract


@pytest.fixture(scope="module")
def mlflow_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"
    open_client(uri)
    return uri


class TestMlflowProjection(ProjectionContract):
    """The contract for MLflow."""

    @pytest.fixture
    def make_projection(self, tmp_path: Path, mlflow_uri: str) -> Callable[[], Projection]:
        return lambda: MlflowProjection(STUDY, mlflow_uri, str(tmp_path), tmp_path)


def test_importing_the_tracking_package_imports_no_tracker() -> None:
    code = (
        "import sys, hpo_core.tracking, hpo_core.tracking.mlflow_projection; "
        "assert 'mlflow' not in sys.modules and 'optuna' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
