"""The units of training behind a study's results, and where the model came from."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hpo_core.model.hops import units_of
from hpo_core.spec import StudySpec
from hpo_core.state import StudyState


class HopUnit(msgspec.Struct, frozen=True, gc=False):
    """One model on one partition, as it is behind a result."""

    trial: int
    epoch: int
    """From 0."""
    partition: int
    """Its place among the study's partitions; those of validation come after the ones trained on."""
    worker: str
    started: float
    ended: float
    size: int
    """Bytes of the state that the model came with; 0: it began there."""
    trains: bool
    came_from: str
    """Worker of the trial's unit before, of a gang that of rank 0; empty: there was none."""
    rank: int = 0
    """Of a gang, which saw several partitions at once; each of its ranks is listed."""
    ranks: int = 1

    @property
    def changed_worker(self) -> bool:
        """Whether the model hopped here from another worker."""
        return bool(self.came_from) and self.came_from != self.worker

    @property
    def seconds(self) -> float:
        return self.ended - self.started


def _as_recorded(time: float) -> float:
    return time


def hop_units(spec: StudySpec, state: StudyState, *, clock: Callable[[float], float] = _as_recorded) -> list[HopUnit]:
    """Trial by trial, each in the order of its visits; empty where models do not hop.

    Args:
        clock: from recorded seconds to those that are shown.
    """
    if spec.data is None:
        return []
    trained_on = len(spec.data.files)
    found = []
    for trial in state.trials:
        before = ""
        for result in trial.all_results:
            for unit in units_of(result.visits or (), result.together):
                for rank, visit in enumerate(unit):
                    began = clock(visit.started)
                    found.append(
                        HopUnit(
                            trial=trial.number,
                            epoch=visit.epoch,
                            partition=visit.partition,
                            worker=visit.worker,
                            started=began,
                            ended=max(began, clock(visit.ended)),
                            size=visit.size,
                            trains=visit.partition < trained_on,
                            came_from=before,
                            rank=rank,
                            ranks=len(unit),
                        )
                    )
                before = unit[0].worker
    return found
