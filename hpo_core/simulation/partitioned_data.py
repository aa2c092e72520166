"""A simulated study whose models hop: partitions on virtual workers, beside a full copy of the data on each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpo_core.execution.hopping.hopping_executor import HoppingExecutor
from hpo_core.execution.hopping.virtual_units import VirtualUnits
from hpo_core.execution.virtual import VirtualClock, Worker
from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.partition_file import weights_of
from hpo_core.simulation.simulation import Simulation
from hpo_core.study import Study

RULES = (
    "Models hop: an epoch's time is divided among the partitions by their sizes, an evaluation on an example takes a "
    "tenth of training on it, and hops take no time. A unit of training is an epoch.",
    "With all data on each worker a job runs on any of them, as without partitions: that is task parallelism, and "
    "costs the copies.",
)


@dataclass(frozen=True, slots=True)
class PartitionedData:
    """How partitions lie on the workers: one after the other around, each with so many copies."""

    copies: int = 1

    def holdings(self, names: Sequence[str], workers: int) -> dict[str, list[str]]:
        """By worker: what it holds. Each worker holds something, so of few partitions there are more copies.

        >>> PartitionedData().holdings(["a", "b", "c"], 2)
        {'worker-0': ['a', 'c'], 'worker-1': ['b']}
        >>> PartitionedData(copies=2).holdings(["a", "b", "c"], 3)
        {'worker-0': ['a', 'c'], 'worker-1': ['a', 'b'], 'worker-2': ['b', 'c']}
        >>> PartitionedData().holdings(["a", "b"], 3)
        {'worker-0': ['a'], 'worker-1': ['b'], 'worker-2': ['a']}
        """
        held: dict[str, list[str]] = {f"worker-{number}": [] for number in range(workers)}
        for place, name in enumerate(names):
            for copy in range(min(self.copies, workers)):
                held[f"worker-{(place + copy) % workers}"].append(name)
        for number in range(workers):
            if not held[f"worker-{number}"]:
                held[f"worker-{number}"].append(names[number % len(names)])
        return {worker: sorted(found, key=list(names).index) for worker, found in held.items()}

    def share(self, sizes: Sequence[float], workers: int) -> float:
        """Part of the data that the fullest worker holds."""
        names = [str(place) for place in range(len(sizes))]
        held = self.holdings(names, workers)
        return max(sum(sizes[int(name)] for name in found) for found in held.values()) / sum(sizes)


def made_up_partitions(count: int) -> list[str]:
    """Changes of a study (``KEY=VALUE``) that give it so many equal partitions, before anything was split.

    Raises:
        SpecError: the number is out of range.
    """
    if not 1 <= count <= limits.PARTITIONS:
        raise SpecError(f"--partitions {count} must be from 1 to {limits.PARTITIONS:,}.")
    return [f"data.partitions={json.dumps([f'part-{place}' for place in range(count)])}", "data.validation=null"]


class HoppingSimulation(Simulation):
    """Drives a study whose models hop, in virtual time.

    Args:
        study: its clock must be ``clock``.
        clock: moved forward by :meth:`run`.
        placed: how the partitions lie.
        workers: each one.
        more: ``train``, ``seconds``, ``speedup``, ``curve``, ``faults``, as of
            :class:`~hpo_core.simulation.simulation.Simulation`.
    """

    def __init__(
        self,
        study: Study,
        clock: VirtualClock,
        *,
        placed: PartitionedData,
        workers: Sequence[Worker],
        **more: Any,
    ) -> None:
        data = study.spec.data
        assert data is not None
        files = [*data.files, *data.validation_files]
        units = VirtualUnits(
            clock,
            workers=workers,
            objectives=[metric.name for metric in study.spec.objectives],
            sizes=weights_of(files),
            trained_on=len(data.files),
            holdings=placed.holdings([file.name for file in files], len(workers)),
            **more,
        )
        self._drive(study, units, HoppingExecutor(units, study.spec, None))
