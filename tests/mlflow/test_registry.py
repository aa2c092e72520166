"""MLflow's registry of models: the runs of retrainings that began at once, failed, or came to nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpo_core.retraining.model_registry import ModelRegistry


@pytest.fixture
def registry(empty_store: Path, tmp_path: Path) -> ModelRegistry:
    store = tmp_path / "mlflow.db"
    store.write_bytes(empty_store.read_bytes())
    return ModelRegistry("line", f"sqlite:///{store}", "retrain-line")


def test_of_two_that_began_at_once_the_finished_one_counts(registry: ModelRegistry) -> None:
    tags = {"hpo.kind": "retraining", "hpo.retraining": "k", "hpo.model": "line"}
    made = [registry._store.create("retrain", time.time(), tags) for _ in range(4)]
    first, *_, last = sorted(made, key=lambda run: run.run_id)
    taken = registry.run_of("k")
    assert taken is not None and taken.run_id == first.run_id, "both take the same one"
    registry._store.log(last, tags={"hpo.decided": "true"})
    taken = registry.run_of("k")
    assert taken is not None and taken.run_id == last.run_id, "a decision stands"
    registry.finish(made[1], 7)
    taken = registry.run_of("k")
    assert taken is not None and (taken.run_id, taken.tags["hpo.version"]) == (made[1].run_id, "7")


def test_what_failed_is_gone_on_with_and_shows_as_failed_until_then(registry: ModelRegistry) -> None:
    run = registry.begin("k", "retrain line k", "may.json")
    registry.fail(run, ValueError("no"))
    failed = registry.run_of("k")
    assert failed is not None and failed.status == "FAILED" and failed.tags["hpo.data"] == "may.json"
    again = registry.begin("k", "", "may.json")
    assert (again.run_id, again.status) == (run.run_id, "RUNNING")
    registry.fail(again, KeyboardInterrupt())
    killed = registry.run_of("k")
    assert killed is not None and killed.status == "KILLED"
