"""A tree of tensors, arrays and plain values as bytes, and back; decoding runs no code."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np

from hpo_core.checkpoints.tree_codec import NUMPY_TYPES, TORCH_TYPES, Flattener, unflatten
from hpo_core.model.errors import CheckpointError

_NUMPY = {stored: name for name, stored in NUMPY_TYPES.items()}
_TORCH = {stored: name for name, stored in TORCH_TYPES.items()}
_Blocks = dict[str, tuple[str, tuple[int, ...], bytes]]


def tree_bytes(tree: Any) -> bytes:
    """Encode a tree; equal trees give equal bytes.

    Raises:
        CheckpointError: the tree contains a value that cannot be stored.
    """
    flattener = Flattener()
    structure = flattener.flatten(tree)
    blocks: _Blocks = {
        name: (block.dtype, block.shape, block.data.tobytes()) for name, block in flattener.blocks.items()
    }
    return msgspec.msgpack.encode((msgspec.json.encode(structure), blocks))


def tree_digest(tree: Any) -> str:
    """SHA-256 of a tree, hexadecimal, without a copy of its tensors.

    Raises:
        CheckpointError: see :func:`tree_bytes`.
    """
    flattener = Flattener()
    digest = hashlib.sha256(msgspec.json.encode(flattener.flatten(tree)))
    for name, block in flattener.blocks.items():
        digest.update(f"{name} {block.dtype} {block.shape}".encode())
        digest.update(block.data)
    return digest.hexdigest()


def tree_of(data: bytes) -> Any:
    """Inverse of :func:`tree_bytes`.

    Raises:
        CheckpointError: the bytes are no such tree.
    """
    try:
        text, blocks = msgspec.msgpack.decode(data, type=tuple[bytes, _Blocks])
        tensors: dict[str, Any] = {}

        def array(name: str) -> Any:
            stored, shape, raw = blocks[name]
            return np.frombuffer(bytearray(raw), np.dtype(_NUMPY[stored])).reshape(shape)

        def tensor(name: str) -> Any:
            import torch

            if name not in tensors:  # what was tied stays tied
                stored, shape, raw = blocks[name]
                dtype = getattr(torch, _TORCH[stored])
                flat = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
                tensors[name] = flat.reshape(shape)
            return tensors[name]

        return unflatten(msgspec.json.decode(text), array, tensor)
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"A state cannot be decoded: {type(error).__name__}: {error}.") from error
