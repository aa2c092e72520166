"""The settings of ``data`` in one line."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_core.model.partition_file import PartitionFile
from hpo_core.spec import DataSpec, StudySpec, all_at_once
from hpo_core.views.formatting import plural


def data_words(spec: StudySpec) -> str:
    """How many partitions, of how many examples, where; empty where models do not hop."""
    return "" if spec.data is None else words_of_data(spec.data, all_at_once=all_at_once(spec))


def words_of_data(data: DataSpec, *, all_at_once: bool = False) -> str:
    """The same, where the study does not say how many models train at once, and the search does.

    >>> words_of_data(DataSpec(partitions=[{"name": "a", "count": 9000}, {"name": "b", "count": 9001}], folder="/srv"))
    '2 partitions (18,001 examples) in /srv, scheduler remaining, two models for each worker at once'
    >>> words_of_data(DataSpec(partitions="part-*.npz", validation=["v"], load="lab:read", concurrent=2))
    'partitions part-*.npz, validation on 1 partition, loaded by lab:read, scheduler remaining, 2 models at once'
    """
    where = f" in {data.folder}" if data.folder else ""
    models = "all models" if all_at_once else "two models for each worker"
    found = [
        f"{_files(data.partitions)}{where}",
        "" if data.validation is None else f"validation on {_files(data.validation)}",
        f"loaded by {data.load}" if data.load else "",
        f"scheduler {data.scheduler}",
        f"{models if data.concurrent is None else plural(data.concurrent, 'model')} at once",
    ]
    return ", ".join(filter(None, found))


def _files(files: str | Sequence[PartitionFile]) -> str:
    if isinstance(files, str):
        return f"partitions {files}"
    counts = [file.count for file in files if file.count is not None]
    examples = f" ({sum(counts):,} examples)" if len(counts) == len(files) else ""
    return f"{plural(len(files), 'partition')}{examples}"
