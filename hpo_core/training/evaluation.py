"""Evaluates trained models on other data: loads their checkpoints, trains nothing, writes nothing.

``python -m hpo_core.training.evaluation FILE`` reads one :class:`EvaluationRequest` from standard input and writes
:class:`Evaluation` values to the file: user code runs in a process of its own, as in training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from hpo_core.checkpoints import files as checkpoints
from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import Checkpoint, Job, Metrics, Params, Rung
from hpo_core.training.handle import TrialHandle
from hpo_core.training.objective import load_objective
from hpo_core.training.request import JobRequest, StudySetup
from hpo_core.training.saved_state import seed_all
from hpo_core.training.user_code import answer_request, ask_process

MAX_LOSSES = 10_000
"""Maximum number of losses per example that an evaluation keeps; of more, this many, evenly spaced by size."""


class TrainedModel(msgspec.Struct, frozen=True):
    """A trained model: its parameters and the checkpoint below ``folder``."""

    trial: int
    params: Params
    seed: int
    folder: str
    checkpoint: Checkpoint
    base: str = ""
    """Folder or URL that the checkpoint must lie below, relative to ``folder``."""


class EvaluationRequest(msgspec.Struct, frozen=True):
    """Models to evaluate, and the function that does so."""

    function: str
    """``package.module:function``, called once per model."""
    pythonpath: tuple[str, ...]
    metric: str
    """Name of the metric that the function must report."""
    models: tuple[TrainedModel, ...]


class Evaluation(msgspec.Struct, frozen=True):
    """The result for one model."""

    metrics: Metrics
    losses: tuple[float, ...]
    """Losses per example, ascending, for the drift check; empty where the function returned none."""
    in_order: tuple[float, ...] = ()
    """Losses per example in the function's order; of more than MAX_LOSSES, this many, evenly spaced."""
    examples: int = 0
    """Number of losses that the function returned."""
    mean: float = 0.0
    """Mean of all losses."""


class EvaluationHandle(TrialHandle):
    """The ``trial`` of an evaluation function: its checkpoint is loaded and no step is left.

    ::

        def evaluate(trial):
            model = build_model(trial.params)
            trial.track(model=model)          # weights are loaded; what is not tracked is left alone
            losses = loss_of_each(model, load(trial.params["data"]))
            trial.report(val_loss=losses.mean())
            return losses                     # one per example, in one order for all models
    """

    def track(self, **objects: Any) -> None:
        """Load these objects' states from the checkpoint; states of other names are ignored.

        Raises:
            ObjectiveError: the checkpoint has no state of that name, or it does not fit the object.
        """
        assert self._state is not None
        for name, item in objects.items():
            if name not in self._state["tracked"]:
                raise self._mismatch(f"has no {name!r}")
            self._load(name, item)

    def steps(self) -> Iterator[int]:
        return iter(())

    def reported(self, metric: str) -> Metrics:
        """The reported metrics.

        Raises:
            ObjectiveError: ``metric`` is not among them, or is not finite.
        """
        if not math.isfinite(self._metrics.get(metric, math.nan)):
            raise ObjectiveError(
                f"The evaluation function reported {metric} = {self._metrics.get(metric)} for trial {self.number} "
                f"({self.params}); it must be one finite number. Call trial.report({metric}=...) in it, outside of "
                "trial.steps()."
            )
        return dict(self._metrics)


def evaluate_models(request: EvaluationRequest, *, timeout: float | None = None) -> list[Evaluation]:
    """Evaluate models one after the other in a separate process.

    Args:
        timeout: seconds for all of them; None: no limit.

    Raises:
        ObjectiveError: the function raised, reported no metric, or its process died or took too long.
    """
    what, module = f"Evaluation by {request.function}", "hpo_core.training.evaluation"
    found: list[Evaluation] = ask_process(module, request, list[Evaluation], timeout=timeout, what=what)
    return found


def evaluate_in_process(request: EvaluationRequest) -> list[Evaluation]:
    """Evaluate models one after the other in this process.

    Raises:
        ObjectiveError: the function raised, or reported no metric.
        CheckpointError: a checkpoint is absent or corrupt.
    """
    function = load_objective(request.function, request.pythonpath, setting="evaluate")
    return [_evaluate(function, request, model) for model in request.models]


def _evaluate(function: Any, request: EvaluationRequest, model: TrainedModel) -> Evaluation:
    at = model.checkpoint.resource
    handle = EvaluationHandle(
        JobRequest(
            setup=StudySetup(
                study="evaluation", objective=request.function, metrics=(request.metric,), folder=model.folder
            ),
            job=Job(model.trial, 0, Rung(0, 0), target=at, params=model.params, checkpoint=model.checkpoint),
            seed=model.seed,
        ),
        checkpoints.load(model.folder, model.checkpoint, model.base),
    )
    seed_all(model.seed)
    losses = function(handle)
    return _evaluation(handle.reported(request.metric), losses)


def _evaluation(metrics: Metrics, losses: Any) -> Evaluation:
    if losses is None:
        return Evaluation(metrics, ())
    if hasattr(losses, "detach"):
        losses = losses.detach().cpu()
    given = np.asarray(losses)
    if given.size and given.dtype.kind not in "biuf":
        raise ObjectiveError(
            f"The evaluation function returned losses per example of type {given.dtype}; return one real number each."
        )
    found = given.astype(float).ravel()
    if not np.isfinite(found).all():
        raise ObjectiveError(
            "The evaluation function returned losses per example that are not all finite. Clip them, or leave them out."
        )
    kept = np.linspace(0, len(found) - 1, min(len(found), MAX_LOSSES)).round().astype(int)
    return Evaluation(
        metrics,
        tuple(np.sort(found)[kept].tolist()),
        in_order=tuple(found[kept].tolist()),
        examples=len(found),
        mean=float(found.mean()) if len(found) else 0.0,
    )


if __name__ == "__main__":
    answer_request(EvaluationRequest, evaluate_in_process)
