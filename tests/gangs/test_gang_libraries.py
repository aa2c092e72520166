"""Lightning and Hugging Face's Trainer in a gang: by their own strategies, in the process group that is there."""

from __future__ import annotations

import pytest

from hpo_core.model.trial import Outcome, Report
from tests.gangs.test_ranks import Gangs, gangs

__all__ = ["gangs"]
pytestmark = pytest.mark.slow


def values(report: Report, name: str) -> list[float]:
    assert report.outcome is Outcome.COMPLETED, report.message + report.detail
    assert not report.warnings, report.warnings
    return [point.metrics[name] for point in report.curve]


def whole_and_resumed(gangs: Gangs, function: str, metric: str, size: int) -> list[float]:
    whole = values(gangs.train(size, 3, function, metric=metric), metric)
    first = gangs.train(size, 1, function, metric=metric)
    rest = gangs.train(size, 3, function, metric=metric, start=first.checkpoint)
    assert values(first, metric) + values(rest, metric) == whole
    return whole


def test_huggingface_trains_in_a_gang_what_it_trains_alone(gangs: Gangs) -> None:
    pytest.importorskip("transformers")
    alone = whole_and_resumed(gangs, "train_with_huggingface", "eval_loss", 1)
    together = whole_and_resumed(gangs, "train_with_huggingface", "eval_loss", 2)
    assert together == pytest.approx(alone, rel=1e-5)


def test_lightning_trains_in_a_gang_and_resumes_exactly(gangs: Gangs) -> None:
    pytest.importorskip("lightning")
    losses = whole_and_resumed(gangs, "train_with_lightning", "loss", 2)
    assert losses[-1] < losses[0]
    alone = gangs.train(2, 1, "train_with_lightning", params={"alone": True})
    assert alone.outcome is Outcome.ERROR and "1 processes in a gang of 2" in alone.message
    assert "devices=trial.world_size" in alone.message
