"""The manifest beside partitions: what they were made from, and what each of them holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hpo_core.model.errors import SpecError
from hpo_core.model.partition_file import PartitionFile
from hpo_core.model.short_text import cut
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
