"""Bytes that the models moved, beside the formulas of Cerebro's Table 2."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from hpo_core.spec import StudySpec
from hpo_core.state import StudyState
from hpo_core.views.hopping.hop_units import HopUnit


class MovedBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What a study moved, and what it would have moved otherwise (Cerebro, Table 2).

    The source has one size m for all models, and k epochs for each of |S| configurations. Here each trial counts with
    the epochs that it trained and the size of its own model.
    """

    units: int
    hops: int
    """Units that a model came to with a state, each rank of a gang counted."""
    moved: int
    """Bytes of these states."""
    changed_worker: int
    """Hops to another worker than that of the trial's unit before."""
    moved_to_others: int
    """Bytes of the states of these hops."""
    model: int
    """Mean size of a model's state; 0: not known yet."""
    data: int | None
    """Bytes of all partitions; None: not known."""
    workers: int
    """That models visited."""
    epochs: int
    """Of all trials together: k|S| in the source."""
    hopping: int
    """Model hopper parallelism: k m p |S| + m |S|."""
    replication: int | None
    """Task parallelism, the data copied to each worker: p D + m |S|."""
    remote_reads: int | None
    """Task parallelism, the data read anew in each epoch: k |S| D + m |S|."""


def moved_bytes(spec: StudySpec, state: StudyState, units: Sequence[HopUnit]) -> MovedBytes | None:
    """None where no unit has ended.

    Args:
        spec: with ``data``.
        state: of the study.
        units: of :func:`~hpo_core.views.hopping.hop_units.hop_units`.
    """
    if spec.data is None or not units:
        return None
    files = [*spec.data.files, *spec.data.validation_files]
    epochs: dict[int, set[int]] = defaultdict(set)
    sizes: dict[int, int] = defaultdict(int)
    for unit in units:
        epochs[unit.trial].add(unit.epoch)
        sizes[unit.trial] = max(sizes[unit.trial], unit.size)
    for trial in sizes:
        kept = (result.checkpoint.size for result in state.trials[trial].all_results if result.checkpoint)
        sizes[trial] = max([sizes[trial], *kept])
    known = [file.bytes for file in files if file.bytes is not None]
    data = sum(known) if len(known) == len(files) else None
    trained, initial = sum(map(len, epochs.values())), sum(sizes.values())
    workers = len({unit.worker for unit in units})
    came = [unit for unit in units if unit.size]
    changed = [unit for unit in came if unit.changed_worker]
    return MovedBytes(
        units=sum(unit.rank == 0 for unit in units),
        hops=len(came),
        moved=sum(unit.size for unit in came),
        changed_worker=len(changed),
        moved_to_others=sum(unit.size for unit in changed),
        model=math.ceil(initial / len(sizes)),
        data=data,
        workers=workers,
        epochs=trained,
        hopping=sum(len(epochs[trial]) * len(files) * size for trial, size in sizes.items()) + initial,
        replication=None if data is None else workers * data + initial,
        remote_reads=None if data is None else trained * data + initial,
    )
