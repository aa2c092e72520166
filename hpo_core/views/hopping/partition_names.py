"""Names of partitions as short as they stay apart."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

import msgspec

from hpo_core.spec import StudySpec


class PartitionNames(msgspec.Struct, frozen=True):
    """Short names of a study's partitions."""

    all: tuple[str, ...]
    """Those of validation at the end."""
    trained_on: int
    """So many of them are trained on."""

    @classmethod
    def of(cls, spec: StudySpec) -> PartitionNames | None:
        """None where models do not hop."""
        if spec.data is None:
            return None
        training = [file.name for file in spec.data.files]
        validation = [file.name for file in spec.data.validation_files]
        short = (*short_names(training), *short_names(validation))
        return cls(short if len(set(short)) == len(short) else (*training, *validation), len(training))


def short_names(names: Sequence[str]) -> tuple[str, ...]:
    """Without the folder and the end that all of them have.

    >>> short_names(["shards/part-00000-of-00002.npz", "shards/part-00001-of-00002.npz"])
    ('part-00000', 'part-00001')
    >>> short_names(["north/1.npz", "south/1.npz"]), short_names(["train.npz"])
    (('north', 'south'), ('train',))
    """
    last = [PurePosixPath(name).name for name in names]
    if len(set(last)) < len(last):
        last = list(names)
    if len(last) <= 1:
        return tuple(PurePosixPath(name).stem for name in last)
    ends = sorted(name[::-1] for name in last)  # what the first and the last share, all share
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ends[0], ends[-1], strict=False))
    common = "".join(one for one, _ in same)[::-1]
    end = re.search(r"[-_./]", common)
    cut = len(common) - end.start() if end else 0
    short = tuple(name[: len(name) - cut] for name in last)
    return short if all(short) else tuple(last)
