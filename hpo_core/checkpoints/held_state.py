"""HeldState: the state that the last attempt of a process saved, for the next attempt of that process.

It is the very bytes of the file, in the memory that they were written from. An attempt that begins with that
checkpoint takes them from there, once their digest was found to be the checkpoint's; else it reads the file.

A large state is not written before the report: it is copied into memory that the process's worker reads (see
:mod:`shared_state`), the worker writes it while the process trains the next attempt, and it is held there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from mmap import mmap
from typing import Any

import numpy as np
from blake3 import blake3

from hpo_core.checkpoints.files import BLAKE3
from hpo_core.checkpoints.shared_state import SharedState
from hpo_core.checkpoints.storage import local_path
from hpo_core.checkpoints.tree_codec import TYPE_NAMES, empty_array, empty_tensor, unflatten
from hpo_core.model.trial import Checkpoint

LEAST_BYTES = 8 << 20
"""Size from which on a state is copied: a smaller one is written in the time that this and the messages take."""
_ALIGNMENT = 64
"""Bytes that torch aligns its memory to: kernels may round by alignment."""


class HeldState:
    """At most one state; made for a process that may serve a further attempt.

    Args:
        shared: memory that its worker writes states from; None: the process writes each of them itself.
    """

    def __init__(self, shared: SharedState | None = None) -> None:
        self._shared = shared
        self._checkpoint: Checkpoint | None = None
        self._chunks: list[memoryview] = []
        self.taken = False
        """Whether the present attempt took it."""

    @property
    def digest(self) -> str:
        """Digest of its checkpoint, or its URI where its worker makes the digest; empty: no state is held."""
        return "" if self._checkpoint is None else self._checkpoint.digest or self._checkpoint.uri

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        own = 0 if self._checkpoint is None or not self._checkpoint.digest else self._checkpoint.size
        return own + (0 if self._shared is None else self._shared.mapped)

    def copy(self, checkpoint: Checkpoint, parts: Sequence[Any], room: int) -> bool:
        """Copy a state that its worker is to write, and hold it in place of an earlier one.

        Args:
            checkpoint: without a digest, which is made when it is written.
            parts: of the file, as ``tree_parts`` gives them.
            room: bytes that it may take.

        Returns:
            False: write it first, for it is small, there is too little memory, or no worker would write it.
        """
        if self._shared is None or checkpoint.size < LEAST_BYTES:
            return False
        self.drop()
        if checkpoint.size > room + self._shared.mapped:
            return False
        try:
            self._chunks = self._shared.fill(parts)
        except (OSError, ValueError):  # no memory, or user code closed its descriptor
            return False
        self._checkpoint = checkpoint
        return True

    def hold(self, checkpoint: Checkpoint, chunks: Sequence[memoryview], room: int) -> None:
        """Hold what was written to a checkpoint's file, in place of an earlier state.

        Args:
            chunks: of the file: ``memory_of`` each of its parts.
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
        if checkpoint is None or not self._is(checkpoint):
            self.drop()

    def _is(self, checkpoint: Checkpoint) -> bool:
        held = self._checkpoint
        return held is not None and held.digest in ("", checkpoint.digest) and held.uri == checkpoint.uri

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
        is_held, chunks = self._is(checkpoint), self._chunks
        self.drop()
        if not is_held:
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
    """The tree whose file these chunks are; its tensors and arrays take over the memory of the chunks."""
    header = json.loads(bytes(chunks[0][8:]))
    metadata = header.pop("__metadata__")
    chunk_of = dict(zip(header, chunks[1:], strict=True))
    tensors: dict[str, Any] = {}

    def array(name: str) -> Any:
        if isinstance(chunk_of[name].obj, mmap):  # the next state comes there
            value, memory = empty_array(header[name]["dtype"], header[name]["shape"])
            memory[:] = chunk_of[name]
            return value
        flat: Any = chunk_of[name].obj
        return flat.view(np.dtype(TYPE_NAMES[header[name]["dtype"]])).reshape(header[name]["shape"])

    def tensor(name: str) -> Any:
        if name not in tensors:  # what was tied stays tied
            import torch

            if isinstance(chunk_of[name].obj, mmap):
                tensors[name], memory = empty_tensor(header[name]["dtype"], header[name]["shape"])
                memory[:] = chunk_of[name]
                return tensors[name]
            flat: Any = chunk_of[name].obj
            own = flat.base if isinstance(flat.base, torch.Tensor) else torch.from_numpy(flat)
            if own.data_ptr() % _ALIGNMENT or _is_shared(own):
                own = own.clone()
            kind = getattr(torch, TYPE_NAMES[header[name]["dtype"]])
            empty: Any = torch.empty(0, dtype=kind)
            tensors[name] = empty.set_(own.untyped_storage(), 0, header[name]["shape"])  # no view
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
