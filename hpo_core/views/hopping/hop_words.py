"""What a study's models did, and one trial's, in lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from hpo_core.model.hops import units_of
from hpo_core.spec import StudySpec
from hpo_core.state import TrialRecord
from hpo_core.study import Study
from hpo_core.views.formatting import byte_count, plural
from hpo_core.views.hopping.hop_units import hop_units
from hpo_core.views.hopping.hop_uses import mean_utilization, partition_uses, worker_uses
from hpo_core.views.hopping.moved_bytes import moved_bytes
from hpo_core.views.hopping.partition_names import PartitionNames
from hpo_core.views.hopping.visit_order import epochs_of
from hpo_core.views.settings_words import data_words


def hopping_line(study: Study) -> str:
    """The data, and what was done with them until now; empty where models do not hop."""
    if study.spec.data is None:
        return ""
    return f"{data_words(study.spec)}; {done_words(study)}"


def done_words(study: Study) -> str:
    """Units, workers, utilization and bytes behind the results."""
    units = hop_units(study.spec, study.state)
    moved = moved_bytes(study.spec, study.state, units)
    if moved is None:
        return "no result yet"
    uses = worker_uses(units)
    words = [
        f"{plural(moved.units, 'unit')} of {plural(moved.epochs, 'epoch')} on {plural(len(uses), 'worker')}",
        f"busy {100 * (mean_utilization(uses) or 0.0):.0f} % of the time",
    ]
    if moved.moved:
        words.append(f"{plural(moved.hops, 'hop')} moved {byte_count(moved.moved)}")
    return ", ".join(words)


def plain_hops(study: Study) -> dict[str, Any]:
    """For programs; empty where models do not hop, or no result is there."""
    data = study.spec.data
    units = hop_units(study.spec, study.state)
    moved = moved_bytes(study.spec, study.state, units)
    if data is None or moved is None:
        return {}
    files = [*data.files, *data.validation_files]
    found: dict[str, Any] = {
        "moved": msgspec.to_builtins(moved),
        "workers": msgspec.to_builtins(worker_uses(units)),
        "partitions": msgspec.to_builtins(partition_uses(files, len(data.files), units)),
    }
    return found


def visit_lines(spec: StudySpec, trial: TrialRecord) -> Iterator[str]:
    """The partitions that a trial visited, a line for each epoch behind its results."""
    names = PartitionNames.of(spec)
    for result in trial.all_results if names is not None else ():
        assert names is not None
        yield from (epoch.line for epoch in epochs_of(result.visits or (), names, result.together))


def plain_visits(spec: StudySpec, trial: TrialRecord) -> list[dict[str, Any]]:
    """The visits behind a trial's results in their order, for programs and tables.

    Where a gang saw several partitions at once, each has its rank, from 0.
    """
    if spec.data is None:
        return []
    names = [file.name for file in (*spec.data.files, *spec.data.validation_files)]
    return [
        {
            "epoch": visit.epoch,
            "partition": names[visit.partition],
            "worker": visit.worker,
            "started": visit.started,
            "ended": visit.ended,
            "bytes": visit.size,
            **({"rank": rank} if len(unit) > 1 else {}),
        }
        for result in trial.all_results
        for unit in units_of(result.visits or (), result.together)
        for rank, visit in enumerate(unit)
    ]
