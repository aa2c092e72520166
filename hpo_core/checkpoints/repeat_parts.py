"""One checkpoint file for all seed repeats of a trial.

The best repeat's state lies where that of a trial without repeats lies: whatever reads one model (evaluation, weights
alone, MLflow) reads that one. The states of the others are in the same file under names of their own, and
:func:`hpo_core.checkpoints.files.load` finds them by the repeat's number. Blocks are copied as they are: no torch, and
no more memory than one part's header.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from hpo_core.checkpoints import files
from hpo_core.checkpoints.storage import local_copy, local_path
from hpo_core.checkpoints.tree_codec import Block, file_chunks
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
        blocks: dict[str, Block] = {}
        for repeat, part in enumerate(parts):
            path = local_path(folder, part.uri, base)
            if path is None:
                path = stack.enter_context(local_copy(part.uri))
            files.verify(path, part, Path(folder))
            own, own_blocks = files.mapped(path)
            metadata[files.tree_key(repeat, best)] = own["hpo_tree"]
            blocks |= {files.block_name(name, repeat, best): block for name, block in own_blocks.items()}
        chunks = file_chunks(metadata, blocks)
        return files.write_chunks(folder, relative_path, chunks, resource=parts[0].resource, parent=parent)
