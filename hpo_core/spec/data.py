"""``data``: partitions that lie on the workers, and that each configuration's model visits once an epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.partition_file import PartitionFile, natural_order, problem_of_name
from hpo_core.model.settings import Part
from hpo_core.model.short_text import at_most, shown
from hpo_core.spec.sent_functions import FUNCTION, FunctionName

MANIFEST_SUFFIX = ".json"
DATA_PARAMETER = "data"
"""Name of the parameter with the data that a trial trains on (``trial.params["data"]``)."""
_WILDCARDS = frozenset("*?[")


def is_manifest(pattern: str) -> bool:
    return pattern.endswith(MANIFEST_SUFFIX) and not _WILDCARDS & set(pattern)


def in_full(path: str) -> Path:
    """A path with ``~`` written out.

    Raises:
        SpecError: there is no such user, or no home.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise SpecError(f"data: {shown(path)} leads nowhere ({error}); write the path in full.") from None


def _read_files(given: Any) -> Any:
    if not isinstance(given, str | list | tuple):
        raise ValueError("write a pattern such as shards/part-*.npz, a list of names, or the path of a manifest.json")
    if isinstance(given, str):
        if not given.strip():
            raise ValueError("is empty; write a pattern such as shards/part-*.npz")
        if is_manifest(given):
            return given
        if "**" in given:
            raise ValueError(f"{shown(given)}: ** is not taken; write a * for each level of folders")
        if problem := problem_of_name(given):
            raise ValueError(problem)
        return PurePosixPath(given).as_posix()
    if not given:
        raise ValueError("names no partition; at least one is needed")
    at_most("data", len(given), limits.PARTITIONS, "partitions; make fewer, larger ones")
    return list(given)


def _sorted(files: str | list[PartitionFile]) -> str | list[PartitionFile]:
    if isinstance(files, str):
        return files
    if twice := [name for name, count in Counter(file.name for file in files).items() if count > 1]:
        raise ValueError(f"names {shown(twice[0])} twice; drop one, for a model visits each partition once an epoch")
    return sorted(files, key=lambda file: natural_order(file.name))


if TYPE_CHECKING:
    Files = str | list[Any]
else:
    Files = Annotated[
        Annotated[str, Tag("pattern")] | Annotated[list[PartitionFile], Tag("list")],
        Discriminator(lambda given: "pattern" if isinstance(given, str) else "list"),
        BeforeValidator(_read_files),
    ]


class DataSpec(Part):
    """Data that were split once; the models travel from worker to worker, the partitions stay (Cerebro)."""

    partitions: Files = Field(
        description="Files that are trained on: a pattern such as shards/part-*.npz, a list of names or of {name, "
        "count, bytes, digest}, or the path of a manifest.json of `hpo partition`. The journal keeps the list.",
    )
    validation: Files | None = Field(
        default=None,
        description="Files that a model is evaluated on at the end of each epoch, in the same words; of a manifest, "
        "those for validation. null: the training function evaluates by itself, or not at all.",
    )
    folder: str | None = Field(
        default=None,
        min_length=1,
        description="Folder on each worker that names are relative to; default: the study file's. A worker whose "
        "environment has HPO_PARTITION_FOLDER uses that one.",
    )
    load: FunctionName | None = Field(
        default=None,
        pattern=FUNCTION,
        description="Function as package.module:function that gets the path of a partition; what it returns is "
        "trial.partition, and stays in the worker's memory. null: trial.partition is the path.",
    )
    scheduler: Literal["remaining", "randomized"] = Field(
        default="remaining",
        description="Which model visits which partition next. remaining: the model with most work left on other "
        "workers; randomized: any that can (Cerebro, Algorithm 1).",
    )
    concurrent: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Configurations that train at once; null: all of them (at most 1,000, and as many as the disk has "
        "room for) for random search, a grid, SHA, Hyperband and PBT, else twice as many as workers.",
    )

    @property
    def is_resolved(self) -> bool:
        return not isinstance(self.partitions, str) and not isinstance(self.validation, str)

    @property
    def files(self) -> tuple[PartitionFile, ...]:
        assert not isinstance(self.partitions, str), "hpo_core.partitioning.with_partitions comes first"
        return tuple(self.partitions)

    @property
    def validation_files(self) -> tuple[PartitionFile, ...]:
        assert not isinstance(self.validation, str), "hpo_core.partitioning.with_partitions comes first"
        return tuple(self.validation or ())

    @property
    def all_files(self) -> tuple[PartitionFile, ...]:
        return (*self.files, *self.validation_files)

    def beside(self, folder: Path) -> Self:
        """With the folder of partitions made absolute.

        Args:
            folder: of the study file.

        Raises:
            SpecError: there is no such user.
        """
        return self.model_copy(update={"folder": str((folder / in_full(self.folder or ".")).absolute())})

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("partitions", "validation"):
            if (files := getattr(self, name)) is not None:
                try:
                    object.__setattr__(self, name, _sorted(files))
                except ValueError as error:
                    raise ValueError(f"{name} {error}") from None
        if isinstance(self.partitions, str) or isinstance(self.validation, str):
            return self
        both = {file.name for file in self.files} & {file.name for file in self.validation_files}
        if both:
            raise ValueError(
                f"{shown(min(both))} is in partitions and in validation; a model must not be evaluated on what it was "
                "trained on: drop it from one of them"
            )
        return self
