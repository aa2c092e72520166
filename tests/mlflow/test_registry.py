"""MLflow's registry of models: runs of retrainings that finished, failed or were interrupted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpo_core.retraining.model_registry import KEY, ModelRegistry


@pytest.fixture
def registry(empty_store: Path, tmp_path: Path) -> ModelRegistry:
    store = tmp_path / "mlflow.db"
    store.write_bytes(empty_store.read_bytes())
    return ModelRegistry("line", f"sqlite:///{store}", "retrain-line")


def test_a_run_that_failed_is_begun_anew_and_an_interrupted_one_goes_on(registry: ModelRegistry) -> None:
    first = registry.begin("abcdefghij", "retrain line", "may.json")
    assert re.fullmatch(r"abcdefgh-20\d{6}", first.tags[KEY])
    registry.fail(first, ValueError("no"))
    second = registry.begin("abcdefghij", "retrain line", "may.json")
    assert second.tags[KEY] == first.tags[KEY] + "-2", "its studies have other names"
    registry.fail(second, KeyboardInterrupt())
    again = registry.begin("abcdefghij", "retrain line", "may.json")
    assert (again.run_id, again.status) == (second.run_id, "RUNNING")
    elsewhere = registry.begin("abcdefghij", "retrain line", "copy.json")
    assert elsewhere.tags[KEY] == first.tags[KEY] + "-3", "the studies of the other name the other place"
    other = registry.begin("zyxwvutsrq", "retrain line", "june.json")
    assert other.tags[KEY].startswith("zyxwvuts-")


def test_the_work_for_some_data_is_done_once_until_its_run_is_deleted(registry: ModelRegistry) -> None:
    run = registry.begin("abcdefghij", "retrain line", "may.json")
    registry.finish(run)
    again = registry.begin("abcdefghij", "retrain line", "copy.json")
    assert (again.run_id, again.status) == (run.run_id, "FINISHED")
    registry._client.delete_run(run.run_id)
    anew = registry.begin("abcdefghij", "retrain line", "may.json")
    assert anew.tags[KEY] == run.tags[KEY] + "-2"
