"""A file of the data that models hop over: its name, and what is known of it.

HPO_PARTITION_FOLDER      on a worker: folder of its partitions, instead of ``data.folder``
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from pydantic import Field, field_validator, model_validator

from hpo_core.model.settings import Part
from hpo_core.model.short_text import shown

FOLDER_VARIABLE = "HPO_PARTITION_FOLDER"
"""Environment variable of a worker: where its partitions lie, whatever the study says."""

MOST_CHARACTERS = 1_000
"""Maximum length of a partition's name: file systems take paths of 4,096 bytes."""

Signature = tuple[int, int, int, int, int]
"""Device, inode, size, time of the last write, time of the last change (which nobody can set back).

Another one means that the file was replaced, moved, written to, or given other permissions.
"""


class PartitionFile(Part):
    """A partition. A worker holds it where the file is there and has the size and digest that are known."""

    name: str = Field(
        min_length=1, max_length=MOST_CHARACTERS, description="Path of the file below the folder of partitions."
    )
    count: int | None = Field(default=None, ge=1, description="Examples in it; null: not known.")
    bytes: int | None = Field(default=None, ge=0, description="Size of the file; null: not checked.")
    digest: str | None = Field(
        default=None,
        pattern=r"^(blake3:)?[0-9a-f]{64}$",
        description="SHA-256 of the file in hexadecimal, or blake3: and its BLAKE3; null: not checked.",
    )

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if problem := problem_of_name(name):
            raise ValueError(problem)
        short = PurePosixPath(name).as_posix()
        if short != name:
            raise ValueError(f"{shown(name)} holds parts that say nothing; write {shown(short)}")
        return name


def problem_of_name(name: str) -> str:
    """Why a path cannot lie below the folder of partitions; empty: it can."""
    path = PurePosixPath(name)
    if path.is_absolute():
        return f"{shown(name)} is absolute; names are relative to data.folder: set data.folder to the folder above it"
    if ".." in path.parts or not path.parts:
        return f"{shown(name)} leads out of data.folder; set data.folder to a folder that holds all partitions"
    return ""


def signature_of(status: os.stat_result) -> Signature:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def weights_of(files: Sequence[PartitionFile]) -> tuple[float, ...]:
    """Numbers of examples of partitions; ones, where not all of them are known.

    >>> weights_of([PartitionFile(name="a", count=3), PartitionFile(name="b", count=5)])
    (3.0, 5.0)
    >>> weights_of([PartitionFile(name="a", count=3), PartitionFile(name="b")])
    (1.0, 1.0)
    """
    counts = [file.count for file in files]
    return tuple(1.0 if None in counts else float(count or 1) for count in counts)


def natural_order(name: str) -> tuple[tuple[str | int, ...], str]:
    """Sorts names as people do: numbers by their value.

    >>> sorted(["part-10", "part-9", "part-1"], key=natural_order)
    ['part-1', 'part-9', 'part-10']
    """
    return tuple(int(part) if i % 2 else part for i, part in enumerate(re.split("([0-9]+)", name))), name


def folder_here(folder: str, environment: Mapping[str, str]) -> str:
    """Folder of the partitions for a process: its own ``HPO_PARTITION_FOLDER``, or else the study's folder.

    >>> folder_here("/srv/shards", {}), folder_here("/srv/shards", {"HPO_PARTITION_FOLDER": "/scratch"})
    ('/srv/shards', '/scratch')
    """
    return environment.get(FOLDER_VARIABLE, "").strip() or folder
