"""HeldState: the state that the last attempt of a process saved, for the next attempt of that process.

It is the very bytes of the file, in the memory that they were written from. An attempt that begins with that
checkpoint takes them from there, once their digest was found to be the checkpoint's; else it reads the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from blake3 import blake3

from hpo_core.checkpoints.files import BLAKE3
from hpo_core.checkpoints.storage import local_path
from hpo_core.checkpoints.tree_codec import STORED_TYPES, unflatten
from hpo_core.model.trial import Checkpoint

_ALIGNMENT = 64
"""Bytes that torch aligns its memory to: kernels may round by alignment."""
_TYPES = {stored: name for name, stored in STORED_TYPES.items()}


class HeldState:
    """At most one state; made for a process that may serve a further attempt."""

    def __init__(self) -> None:
        self._checkpoint: Checkpoint | None = None
        self._chunks: list[memoryview] = []
        self.taken = False
        """Whether the present attempt took it."""

    @property
    def digest(self) -> str:
        """Digest of its checkpoint; empty: no state is held."""
        return "" if self._checkpoint is None else self._checkpoint.digest

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return 0 if self._checkpoint is None else self._checkpoint.size

    def hold(self, checkpoint: Checkpoint, chunks: Sequence[memoryview], room: int) -> None:
        """Hold what was written to a checkpoint's file, in place of an earlier state.

        Args:
            chunks: of the file, as ``tree_chunks`` gives them.
            room: bytes that it may take; a larger state is not held.
        """
        self.drop()
        if checkpoint.size <= room:
            self._checkpoint = checkpoint
            self._chunks = [_only_its_own(chunk) for chunk in chunks]

    def keep_for(self, checkpoint: Checkpoint | None) -> None:
        """Free the memory unless it is this checkpoint's state; call it before each attempt.

        Args:
            checkpoint: that the attempt begins with; None: it begins anew.
        """
        self.taken = False
        if checkpoint is None or self._checkpoint is None or checkpoint.digest != self.digest:
            self.drop()

    def drop(self) -> None:
        """Free the memory."""
        self._checkpoint, self._chunks = None, []

    def take(self, checkpoint: Checkpoint, folder: str, base: str) -> Any:
        """Hand over the tree of a checkpoint; nothing is held afterwards.

        Args:
            folder: of the study.
            base: folder or URL that the checkpoint must be below.

        Returns:
            The tree; None where it has to be read from the file: no such state is held, or the training function
            changed it after it was saved, or the file itself is not there any more.

        Raises:
            CheckpointError: the checkpoint is not below ``base``.
        """
        held, chunks = self._checkpoint, self._chunks
        self.drop()
        if held is None or (held.uri, held.digest) != (checkpoint.uri, checkpoint.digest):
            return None
        path = local_path(folder, checkpoint.uri, base)
        if path is not None and not path.is_file():
            return None
        digest = blake3()
        for chunk in chunks:
            digest.update(chunk)
        if f"{BLAKE3}{digest.hexdigest()}" != checkpoint.digest:
            return None
        self.taken = True
        return _tree(chunks)


def _only_its_own(chunk: memoryview) -> memoryview:
    """The chunk, or a copy of it where it is a part of something larger, which would stay, too."""
    torch = sys.modules.get("torch")
    tensor = getattr(chunk.obj, "base", None)
    if torch is not None and isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes() > len(chunk):
        return memoryview(tensor.clone().numpy()).cast("B")
    return chunk


def _tree(chunks: Sequence[memoryview]) -> Any:
    """The tree that ``tree_chunks`` was given; its tensors and arrays take over the memory of the chunks."""
    header = json.loads(bytes(chunks[0][8:]))
    metadata = header.pop("__metadata__")
    chunk_of = dict(zip(header, chunks[1:], strict=True))
    tensors: dict[str, Any] = {}

    def array(name: str) -> Any:
        flat: Any = chunk_of[name].obj
        return flat.view(np.dtype(_TYPES[header[name]["dtype"]])).reshape(header[name]["shape"])

    def tensor(name: str) -> Any:
        if name not in tensors:  # what was tied stays tied
            import torch

            flat: Any = chunk_of[name].obj
            own = flat.base if isinstance(flat.base, torch.Tensor) else torch.from_numpy(flat)
            if own.data_ptr() % _ALIGNMENT or _is_shared(own):
                own = own.clone()
            kind = getattr(torch, _TYPES[header[name]["dtype"]])
            tensors[name] = torch.empty(0, dtype=kind).set_(own.untyped_storage(), 0, header[name]["shape"])  # no view
        return tensors[name]

    return unflatten(json.loads(metadata["hpo_tree"]), array, tensor)


def _is_shared(tensor: Any) -> bool:
    """Whether another tensor, or an array, has the tensor's memory; also where torch does not tell."""
    import torch

    count = getattr(torch._C, "_storage_Use_Count", None)
    if count is None:
        return True
    alone = torch.empty(1)
    found, least = (one.untyped_storage() for one in (tensor, alone))
    return bool(count(found._cdata) > count(least._cdata))
