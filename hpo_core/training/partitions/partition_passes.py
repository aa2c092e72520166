"""The passes of one attempt over partitions of the data: one where the model hops, else all of them in turn.

A job that is no unit (``hpo try``, ``hpo check``, a study in the user's own process) trains an epoch as its units
would, with one model on one worker: sequential SGD over the partitions, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import Metrics
from hpo_core.training.partitions.loaded_partitions import partition_data, partition_path
from hpo_core.training.reported_metrics import real_number
from hpo_core.training.request import JobRequest

Evaluate = Callable[[Any], dict[str, Any]]
"""Given a partition of the validation data, returns metrics of the model on it."""


class PartitionPasses:
    """Which partition is the present one, and how a model is evaluated on those of validation.

    Args:
        request: of the attempt.
    """

    def __init__(self, request: JobRequest) -> None:
        self._request = request
        self._current = next(iter((*request.partitions, *request.validation)), "")
        self._last = len(request.partitions) <= 1
        self._seen = False
        self.evaluate: Evaluate | None = None

    @property
    def trains(self) -> bool:
        """Whether the attempt trains; else it evaluates alone."""
        unit = self._request.job.unit
        return unit is None or unit.trains

    @property
    def ends_epoch(self) -> bool:
        """Whether the present pass is the last one of its epoch that trains."""
        unit = self._request.job.unit
        return self._last if unit is None else unit.ends_epoch

    def data(self) -> Any:
        """The present partition: its path, or what was loaded from it.

        Raises:
            ObjectiveError: the data are not partitioned, or it cannot be loaded.
        """
        if not self._current:
            raise ObjectiveError(
                "trial.partition: the data of this study are not partitioned. Name them in the study "
                "(data: {partitions: 'shards/part-*.npz'}), or read the data yourself."
            )
        found = partition_data(self._request, self._current)
        self._seen = True
        return found

    def of_epoch(self) -> Iterator[None]:
        """The passes of one epoch that this attempt makes; a single one where the data are not partitioned."""
        names = self._request.partitions or ("",)
        for place, name in enumerate(names):
            self._current, self._last = name, place == len(names) - 1
            yield

    def evaluation(self) -> Metrics:
        """Means over the partitions of validation that this attempt evaluates on, weighted; nothing without any.

        Raises:
            ObjectiveError: the training function does not say how, or a value is no real number.
        """
        sums: dict[str, list[float]] = {}
        for name, weight in zip(self._request.validation, self._request.weights, strict=True):
            if self.evaluate is None:
                raise ObjectiveError(
                    "data.validation names partitions, but the training function does not say how a model is "
                    "evaluated on one. Call trial.evaluate_with(function) before the loop, or drop data.validation."
                )
            found = self.evaluate(partition_data(self._request, name))
            self._check_unchanged(name)
            for metric, value in found.items():
                entry = sums.setdefault(metric, [0.0, 0.0])
                entry[0] += weight * real_number(metric, value)
                entry[1] += weight
        return {metric: total / weight for metric, (total, weight) in sums.items()}

    def check(self, *, tracked: bool) -> None:
        """Refuse a model that hops without its state, or past its data, or whose data changed under it.

        Raises:
            ObjectiveError: so it is.
        """
        if not self._request.partitions:
            return
        if not tracked:
            raise ObjectiveError(
                "The model hops from partition to partition (data.partitions), but nothing is tracked, so nothing "
                "would travel. Call trial.track(model=..., optimizer=...) before the loop."
            )
        if not self._seen:
            raise ObjectiveError(
                "The training function did not read trial.partition, so it would train on the same data in each unit. "
                "Train on trial.partition in the loop over trial.steps(), or drop data.partitions of the study."
            )
        self._check_unchanged(self._current)

    def _check_unchanged(self, name: str) -> None:
        """After a unit: nobody knows when a training function that gets the path has read the file."""
        if self._request.job.unit is not None and not self._request.load:
            partition_path(self._request, name)
