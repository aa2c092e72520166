"""``hpo tune`` on a real NVIDIA GPU: a worker for the card, a killed controller, ranks of a gang that share it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hpo_core.model.events import JobCompleted
from tests.gangs.test_gang_runs import Runs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU that this torch can use"),
]
OBJECTIVE = "tests.gpu.gang_objectives:train"


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    yield Runs(tmp_path)


def test_a_killed_study_on_a_worker_of_the_card_goes_on(runs: Runs) -> None:
    path = runs.study("card", 1, objective=OBJECTIVE, cluster={"kind": "local_cuda"})
    process = runs.start("tune", path)
    runs.until(process, lambda: runs.exists("card") and len(runs.events("card", JobCompleted)) >= 2)
    process.kill()
    process.wait(60)
    runs.run("resume", "card")
    study = runs.whole("card")
    assert len(study.state.trials) == 4 and study.best is not None
    assert all(event.metrics["cuda"] == 1.0 for event in runs.events("card", JobCompleted))
