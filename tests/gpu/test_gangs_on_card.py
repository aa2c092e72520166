"""Gangs on a real NVIDIA GPU: over gloo where ranks share one, over NCCL where each has its own as far as it can tell.

NCCL refuses two ranks on one GPU of one computer. Here the ranks say that they are different computers, so it connects
them by sockets: the same calls, the same ends, and none of the speed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hpo_core.model.trial import Outcome, Report
from tests.gangs.test_ranks import Gangs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU that this torch can use"),
]
OBJECTIVE = "tests.gpu.gang_objectives:train"


@pytest.fixture(params=["gloo", "nccl"])
def gangs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gangs]:
    if request.param == "nccl":
        monkeypatch.setenv("HPO_TEST_COMPUTERS", "many")
        monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    else:
        monkeypatch.delenv("HPO_TEST_COMPUTERS", raising=False)
    made = Gangs(tmp_path)
    yield made
    made.pool.close_all()


def losses(report: Report, nccl: bool) -> list[float]:
    assert report.outcome is Outcome.COMPLETED, f"{report.message}\n{report.detail}"
    assert {point.metrics["nccl"] for point in report.curve} == {float(nccl)}
    return [point.metrics["loss"] for point in report.curve]


def over_nccl() -> bool:
    return os.environ.get("HPO_TEST_COMPUTERS") == "many"


def test_two_ranks_train_what_one_process_trains(gangs: Gangs) -> None:
    alone = losses(gangs.train(1, 4, OBJECTIVE), nccl=False)
    report = gangs.train(2, 4, OBJECTIVE)
    assert losses(report, over_nccl()) == pytest.approx(alone, rel=1e-4)
    assert not report.warnings


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_resume_at_each_rung_is_exact(gangs: Gangs, dropout: float) -> None:
    params: dict[str, Any] = {"dropout": dropout}
    whole = gangs.train(2, 4, OBJECTIVE, params=params)
    rung, curve = None, []
    for target in (1, 2, 4):
        report = gangs.train(2, target, OBJECTIVE, start=rung, params=params)
        curve += losses(report, over_nccl())
        rung = report.checkpoint
    assert curve == losses(whole, over_nccl())
    assert rung is not None and whole.checkpoint is not None and rung.digest == whole.checkpoint.digest


@pytest.mark.parametrize(
    ("how", "outcome", "words"),
    [
        ("raise", Outcome.ERROR, "Rank 1 of 2: KeyError: 'no such layer'"),
        ("memory", Outcome.OUT_OF_MEMORY, "Rank 1 of 2: "),
        ("kill", Outcome.OUT_OF_MEMORY, "Rank 1 of 2: The training process was killed by"),
        ("stop", Outcome.HUNG, "Rank 1 of 2: No step was finished within training.stall_timeout = 20 s"),
    ],
)
def test_a_rank_that_fails_ends_the_gang_as_one_attempt(gangs: Gangs, how: str, outcome: Outcome, words: str) -> None:
    params = {"how": how, "culprit": 1}
    report = gangs.train(2, 3, OBJECTIVE, params=params, stall_timeout=20.0, grace=1.0)
    assert report.outcome is outcome, f"{report.message}\n{report.detail}"
    assert report.message.startswith(words), f"{report.message}\n{report.detail}"
    assert report.checkpoint is None
