"""One checkpoint file for all seed repeats of a trial.

The best repeat's state lies where that of a trial without repeats lies: whatever reads one model (evaluation, weights
alone, MLflow) reads that one. The states of the others are in the same file under names of their own, and
:func:`hpo_core.checkpoints.files.load` finds them by the repeat's number. Blocks are copied as they are: no torch, and
no more memory than one part's header.
"""

from __future__ import annotations

import contextlib
import json
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpo_core.checkpoints import files
from hpo_core.checkpoints.storage import local_copy, local_path
from hpo_core.model.trial import Checkpoint


def merge_parts(
    folder: str | Path,
    relative_path: str,
    parts: Sequence[Checkpoint],
    *,
    best: int,
    base: str = "",
    parent: str | None = None,
) -> Checkpoint:
    """Write one checkpoint that holds the states of all repeats.

    Args:
        folder: the study's folder.
        relative_path: of the file within ``folder``; or a URL.
        parts: the checkpoint of each repeat, in their order, all at one resource.
        best: number of the repeat that is read where one model is wanted.
        base: folder or URL that the parts must be below.
        parent: URI of the checkpoint that training started from.

    Raises:
        CheckpointError: a part is missing or damaged.
        StorageError: the folder cannot be read or written; no file is left behind.
    """
    with contextlib.ExitStack() as stack:
        metadata = {"hpo_format": str(files.FORMAT), files.BEST: str(best)}
        blocks: list[tuple[int, str, dict[str, Any], memoryview]] = []
        for repeat, part in enumerate(parts):
            path = local_path(folder, part.uri, base)
            if path is None:
                path = stack.enter_context(local_copy(part.uri))
            files.verify(path, part, Path(folder))
            header, data = _opened(path)
            metadata[files.tree_key(repeat, best)] = header.pop("__metadata__")["hpo_tree"]
            for name, entry in header.items():
                first, end = entry["data_offsets"]
                blocks.append((repeat, files.block_name(name, repeat, best), entry, data[first:end]))
        blocks.sort(key=lambda block: -files.ITEM_BYTES.get(block[2]["dtype"], 1))  # larger items first: each aligned
        merged: dict[str, Any] = {"__metadata__": metadata}
        offset = 0
        for _, name, entry, data in blocks:
            merged[name] = entry | {"data_offsets": [offset, offset + len(data)]}
            offset += len(data)
        chunks = [memoryview(files.encoded(merged)), *(data for *_, data in blocks)]
        return files.write_chunks(folder, relative_path, chunks, resource=parts[0].resource, parent=parent)


def _opened(path: Path) -> tuple[dict[str, Any], memoryview]:
    """A part's header and its data, mapped for as long as the view lives."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    size = int.from_bytes(mapped[:8], "little")
    return json.loads(mapped[8 : 8 + size]), memoryview(mapped)[8 + size :]
