"""Writes checkpoints of any tree, for tests that begin with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpo_core.checkpoints.files import parts_of, write_chunks
from hpo_core.checkpoints.tree_codec import memory_of
from hpo_core.model.trial import Checkpoint


def save(
    folder: str | Path, path: str, tree: Any, *, resource: int, parent: str | None = None, durable: bool = True
) -> Checkpoint:
    chunks = list(map(memory_of, parts_of(tree)))
    return write_chunks(folder, path, chunks, resource=resource, parent=parent, durable=durable)
