"""Writes a checkpoint's weights alone: a plain state_dict as a safetensors file that any program loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpo_core.model.errors import CheckpointError

NAMES = ("model", "module", "net", "network")
"""What a tracked model is usually called; asked in this order where several objects have weights."""
_MAX_HEADER = 100_000_000
"""As the safetensors library has it."""


def write_weights(checkpoint: Path, target: Path) -> str:
    """Write the weights in a checkpoint to ``target``; returns the name that the model was tracked under.

    They are copied block by block, without torch and without loading them: keys, types and bytes are those of the
    model's ``state_dict()``. Tied weights are written once for each of their keys.

    Args:
        checkpoint: a file that :mod:`hpo_core.checkpoints.files` wrote and whose digest was verified.

    Raises:
        CheckpointError: no tracked object has weights and nothing else, or several do and none is called ``model``.
    """
    with checkpoint.open("rb") as file:
        header, start = _header(checkpoint, file)
        tree = json.loads(header["__metadata__"]["hpo_tree"])
        name, keys = _model(checkpoint, tree)
        order = sorted(keys.items(), key=lambda item: (-_item_bytes(header[item[1]]), item[0]))
        entries: dict[str, Any] = {"__metadata__": {"format": "pt", "tracked": name}}
        offset = 0
        for key, block in order:
            first, end = header[block]["data_offsets"]
            entries[key] = header[block] | {"data_offsets": [offset, offset + end - first]}
            offset += end - first
        body = json.dumps(entries, separators=(",", ":")).encode()
        body += b" " * (-len(body) % 8)
        partial = target.with_name(target.name + ".part")
        with partial.open("wb") as out:
            out.write(len(body).to_bytes(8, "little") + body)
            for _, block in order:
                first, end = header[block]["data_offsets"]
                file.seek(start + first)
                _copy(file, out, end - first)
    partial.replace(target)
    return name


def _header(checkpoint: Path, file: Any) -> tuple[dict[str, Any], int]:
    size = int.from_bytes(file.read(8), "little")
    if not 2 <= size <= _MAX_HEADER:
        raise CheckpointError(f"Checkpoint {checkpoint} is no safetensors file.")
    try:
        header = json.loads(file.read(size))
        header["__metadata__"]["hpo_tree"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"Checkpoint {checkpoint} was not written by this package.") from error
    return header, 8 + size


def _model(checkpoint: Path, tree: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Name of the tracked model, and the block of each key of its state_dict."""
    try:
        tracked: dict[str, Any] = tree["dict"]["tracked"]["dict"]
    except (KeyError, TypeError):
        tracked = {}
    found = {name: keys for name, node in tracked.items() if (keys := _state_dict(node))}
    for name in (*NAMES, *(found if len(found) == 1 else ())):
        if name in found:
            return name, found[name]
    which = (
        f"{', '.join(map(repr, found))} have" if found else f"none of {', '.join(map(repr, tracked)) or 'nothing'} has"
    )
    raise CheckpointError(
        f"Checkpoint {checkpoint}: of what was tracked, {which} a state_dict of tensors and nothing else. Track the "
        "model as trial.track(model=...)."
    )


def _state_dict(node: Any) -> dict[str, str]:
    """Block by key, of a dict of tensors or arrays; empty for anything else."""
    if not isinstance(node, dict):
        return {}
    items = list(node["dict"].items()) if "dict" in node else node.get("ordered", ())
    found = {}
    for key, value in items:
        block = value.get("tensor", value.get("array")) if isinstance(value, dict) and "dtype" not in value else None
        if not isinstance(key, str) or not isinstance(block, str):
            return {}
        found[key] = block
    return found


def _item_bytes(entry: dict[str, Any]) -> int:
    """Larger items come first, so that each is aligned."""
    first, end = entry["data_offsets"]
    count = 1
    for side in entry["shape"]:
        count *= side
    return (end - first) // count if count else 1


def _copy(source: Any, target: Any, size: int) -> None:
    while size:
        chunk = source.read(min(size, 16 * 1024 * 1024))
        if not chunk:
            raise CheckpointError("The checkpoint ended within its weights.")
        target.write(chunk)
        size -= len(chunk)
