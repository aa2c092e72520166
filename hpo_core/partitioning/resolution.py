"""Partitions of a new study: patterns and manifests become the list that the journal keeps."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from glob import glob
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.file_urls import checked_text
from hpo_core.model.partition_file import PartitionFile, folder_here, signature_of
from hpo_core.model.short_text import cut, shown
from hpo_core.partitioning.holdings import digest_of
from hpo_core.spec import StudySpec
from hpo_core.spec.data import DataSpec, in_full, is_manifest
from hpo_core.spec.study_file import read_text

MANIFEST = "manifest.json"
_MOST_BYTES = 16_000_000
_ERRORS_SHOWN = 3


class Manifest(BaseModel):
    """List of the partitions that ``hpo partition`` wrote into a folder. Keys of later versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal[1] = 1
    source: str = ""
    """Name of the data that was split, as the user gave it."""
    seed: int = 0
    stratify: str | None = None
    kind: str = ""
    """``npz``; of manifests of others, whatever their files are."""
    fields: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Type (``dtype``) of each array or column, and of arrays the ``shape`` of one example."""
    partitions: list[PartitionFile]
    validation: list[PartitionFile] = Field(default_factory=list)

    def text(self) -> str:
        return self.model_dump_json(indent=1) + "\n"


def read_manifest(path: Path) -> Manifest:
    """Read a manifest.

    Raises:
        SpecError: it is absent, no manifest, or of a later format.
    """
    try:
        return Manifest.model_validate_json(read_text(path, "a manifest of `hpo partition`", _MOST_BYTES))
    except FileNotFoundError:
        raise SpecError(
            f"{path}: no such manifest. `hpo partition` writes one beside the partitions; where they lie on the "
            "workers alone, copy it here, or list the names in data.partitions."
        ) from None
    except ValidationError as error:
        found = [f"{'.'.join(map(str, one['loc'])) or 'the file'}: {one['msg']}" for one in error.errors()]
        raise SpecError(
            f"{path}: is no manifest that this version reads ({cut('; '.join(found[:_ERRORS_SHOWN]))}). "
            "`hpo partition` writes them."
        ) from None
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: cannot be read ({error}). Check the path and its permissions.") from None


def with_partitions(
    spec: StudySpec, environment: Mapping[str, str] | None = None, *, digests: bool = False
) -> StudySpec:
    """The spec with its partitions listed, and with what is known of each; unchanged where it has no ``data``.

    A pattern becomes the files that it matches here, as they are now. A manifest says counts, sizes and digests. A list
    names files with what is said of them; they may lie on the workers alone.

    Args:
        environment: of this process; default: its own.
        digests: also compute the digests of files that are seen here and whose digest nobody states, which reads them.

    A rerun has the list of its source: nothing is looked at.

    Raises:
        SpecError: a pattern matches nothing, or a file changes while it is read; names the file.
    """
    data = spec.data
    if data is None or spec.search.record() is not None:
        return spec
    folder = str(in_full(data.folder or ".").absolute())
    here = Path(folder_here(folder, os.environ if environment is None else environment))
    found: dict[str, object] = {"folder": folder, "partitions": _listed(data.partitions, "partitions", here)}
    if data.validation is not None:
        found["validation"] = _listed(data.validation, "validation", here)
    listed = _checked(data, found, spec.study)
    if digests:
        found |= {
            role: [_with_digest(file, here) for file in files]
            for role, files in (("partitions", listed.files), ("validation", listed.validation_files))
            if files
        }
        listed = _checked(data, found, spec.study)
    return spec.model_copy(update={"data": listed})


def _checked(data: DataSpec, found: Mapping[str, object], study: str) -> DataSpec:
    try:
        return DataSpec.model_validate(data.model_dump() | dict(found))
    except ValidationError as error:
        words = "; ".join(one["msg"].removeprefix("Value error, ") for one in error.errors())
        raise SpecError(f"Study {study!r}: data: {words}.") from None


def _listed(files: str | list[PartitionFile], role: str, folder: Path) -> list[PartitionFile]:
    if not isinstance(files, str):
        return _completed(files, folder)
    return _of_manifest(files, role, folder) if is_manifest(files) else _matched(files, role, folder)


def _completed(files: list[PartitionFile], folder: Path) -> list[PartitionFile]:
    # Listed files with their size, where it is not stated and they are seen here.
    seen = ((file, None if file.bytes is not None else _as_it_is(file.name, folder)) for file in files)
    return [file if there is None else file.model_copy(update={"bytes": there.bytes}) for file, there in seen]


def _of_manifest(path: str, role: str, folder: Path) -> list[PartitionFile]:
    whole = folder / in_full(path)
    manifest = read_manifest(whole)
    place = "."
    if whole.resolve().is_relative_to(folder.resolve()):
        place = whole.resolve().parent.relative_to(folder.resolve()).as_posix()
    found = _below(place, manifest.partitions if role == "partitions" else manifest.validation)
    if not found:
        cure = "hpo partition --validation 0.1 makes some" if role == "validation" else "split the data again"
        raise SpecError(f"data.{role} = {shown(path)}: this manifest names no partitions for that; {cure}.")
    return found


def _matched(pattern: str, role: str, folder: Path) -> list[PartitionFile]:
    names = [
        name
        for name in glob(pattern, root_dir=folder)  # noqa: PTH207 - Path.glob takes hidden files as well
        if (folder / name).is_file() and PurePosixPath(name).name != MANIFEST
    ]
    at = f"data.{role} = {shown(pattern)}"
    if len(names) > limits.PARTITIONS:
        raise SpecError(
            f"{at}: {len(names):,} files match in {folder}, and there are at most {limits.PARTITIONS:,} partitions; "
            "make fewer, larger ones."
        )
    above = folder.resolve()
    for name in names:
        checked_text(name, f"{at}: file", "Rename it.")
        if not (folder / name).resolve().is_relative_to(above):
            raise SpecError(
                f"{at}: {folder / name} is a link that leads out of {folder}, and workers follow none of those; put "
                "the file there, or set data.folder to a folder that holds both."
            )
    held_out = [name for name in names if PurePosixPath(name).name.startswith("validation-")]
    if held_out and role == "partitions":
        raise SpecError(
            f"{at}: it matches {shown(held_out[0])}, which `hpo partition` made for validation; a metric would be too "
            "good. Write a pattern for the files to train on, as part-*.npz."
        )
    found = [seen for name in names if (seen := _as_it_is(name, folder)) is not None]
    if not found:
        raise SpecError(
            f"{at}: no file matches in {folder}. `hpo partition` splits data; if the partitions lie on the workers "
            "alone, give the list of their names or the path of their manifest.json."
        )
    return found


def _below(place: str, files: list[PartitionFile]) -> list[PartitionFile]:
    return [file.model_copy(update={"name": (PurePosixPath(place) / file.name).as_posix()}) for file in files]


def _as_it_is(name: str, folder: Path) -> PartitionFile | None:
    path = folder / name
    try:
        return PartitionFile(name=name, bytes=path.stat().st_size) if path.is_file() else None
    except OSError:
        return None


def _with_digest(file: PartitionFile, folder: Path) -> PartitionFile:
    """A file with its digest, where it is seen here, is the one that is described, and nobody states its digest.

    Without it a file of the same size that takes its place would be trained on.

    Raises:
        SpecError: it changed while it was read.
    """
    path = folder / file.name
    if file.digest is not None:
        return file
    try:
        with path.open("rb") as opened:
            before = os.fstat(opened.fileno())
            if not stat.S_ISREG(before.st_mode) or file.bytes not in (None, before.st_size):
                return file
            digest = digest_of(opened)
            if signature_of(path.stat()) != signature_of(before):
                raise SpecError(f"data: {path} changed while it was read; start the study once it is complete.")
    except OSError:  # workers may be able to read it
        return file
    return file.model_copy(update={"bytes": before.st_size, "digest": digest})
