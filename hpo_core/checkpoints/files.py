"""Checkpoints as files: one safetensors file each, written whole or not at all, verified before use.

Layout of the file: 8 bytes length, JSON header (one entry per tensor, our structure as its metadata), data.
It is written by hand, for so the hash, the write and the fsync take one pass and no second copy in memory;
it is read by the safetensors library, which checks the header.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import IO, Any

from hpo_core.checkpoints.storage import fetched, local_path, write
from hpo_core.checkpoints.tree_codec import Block, Flattener, unflatten
from hpo_core.model.errors import CheckpointError, StorageError
from hpo_core.model.trial import Checkpoint

FORMAT = 1
_WIDTH = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "C64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
}


def save(folder: str | Path, relative_path: str, tree: Any, *, resource: int, parent: str | None = None) -> Checkpoint:
    """Write ``tree`` durably to ``folder / relative_path`` (or to a URL) and return the reference to it.

    Raises:
        CheckpointError: the tree holds a value that cannot be stored.
        StorageError: the folder cannot be written; nothing is left behind.
    """
    flattener = Flattener()
    try:
        structure = flattener.flatten(tree)
    except RecursionError as error:
        raise CheckpointError(
            "Checkpoint state is nested too deeply, or contains itself. Cure: let state_dict() return a flat dict."
        ) from error
    blocks = sorted(flattener.blocks.items(), key=lambda item: -_WIDTH.get(item[1].dtype, 1))
    head = _header(structure, blocks)
    try:  # it is a path of our own making; what may be on its way is not
        path = local_path(folder, relative_path, "" if "://" not in relative_path else relative_path.rpartition("/")[0])
    except CheckpointError as error:
        raise StorageError(str(error)) from None
    if path is None:
        views = [memoryview(chunk).cast("B") for chunk in (head, *(block.data for _, block in blocks))]
        whole = hashlib.sha256()
        for view in views:
            whole.update(view)
        length = sum(map(len, views))
        write(relative_path, views, length)
        return Checkpoint(uri=relative_path, digest=whole.hexdigest(), resource=resource, size=length, parent=parent)
    side = path.with_name(path.name + ".part")
    digest = hashlib.sha256()
    size = 0
    try:
        # Where a folder was named by the user, who may read its files is what the user's umask says.
        others = 0o077 if "://" in relative_path else 0
        _make_folder(path.parent, 0o700 | others)
        with _new_file(side, 0o600 | others & 0o066) as file:
            for chunk in (head, *(block.data for _, block in blocks)):
                view = memoryview(chunk).cast("B")
                digest.update(view)
                size += len(view)
                while view:
                    view = view[file.write(view) :]
            os.fsync(file.fileno())
        side.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            side.unlink(missing_ok=True)
        raise StorageError(
            f"Checkpoint {path} ({size or len(head)} bytes so far) cannot be written: {error.strerror or error}. "
            "Free space on that disk or make the folder writable, then resume the study."
        ) from error
    return Checkpoint(uri=relative_path, digest=digest.hexdigest(), resource=resource, size=size, parent=parent)


def load(folder: str | Path, checkpoint: Checkpoint, base: str = "") -> Any:
    """Read a checkpoint back after its size and digest were verified.

    Args:
        base: where it must lie (:func:`~hpo_core.checkpoints.storage.local_path`).

    Raises:
        CheckpointError: missing, truncated, corrupt, of a newer format, or not below ``base``.
        StorageError: the study's folder cannot be read at the moment; says nothing about the checkpoint.
    """
    path = local_path(folder, checkpoint.uri, base)
    if path is not None:
        return _load(path, checkpoint, Path(folder) if "://" not in checkpoint.uri else path.parent.parent)
    with fetched(checkpoint.uri) as copy:
        return _load(copy, checkpoint, copy.parent)


def _load(path: Path, checkpoint: Checkpoint, folder: Path) -> Any:
    cure = "The trial must go back to an older checkpoint or start from 0."
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != checkpoint.size:
                raise CheckpointError(f"Checkpoint {path} has {size} bytes, {checkpoint.size} were written. {cure}")
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        if not folder.is_dir():
            raise StorageError(
                f"Study folder {folder} is not there on this worker. Mount it, then resume the study."
            ) from error
        raise CheckpointError(f"Checkpoint {path} is missing. {cure}") from error
    except OSError as error:  # the disk's trouble, not the file's: nothing is condemned for it
        raise StorageError(
            f"Checkpoint {path} cannot be read: {error.strerror or error}. Mend that, then resume the study."
        ) from error
    if digest != checkpoint.digest:
        raise CheckpointError(
            f"Checkpoint {path} is corrupt: its SHA-256 is {digest[:12]}..., {checkpoint.digest[:12]}... was "
            "written. " + cure
        )
    return _read(path)


def _header(structure: Any, blocks: list[tuple[str, Block]]) -> bytes:
    text = json.dumps(structure, allow_nan=False, separators=(",", ":"))
    header: dict[str, Any] = {"__metadata__": {"hpo_format": str(FORMAT), "hpo_tree": text}}
    offset = 0
    for name, block in blocks:
        end = offset + block.data.size
        header[name] = {"dtype": block.dtype, "shape": block.shape, "data_offsets": [offset, end]}
        offset = end
    body = json.dumps(header, separators=(",", ":")).encode()
    body += b" " * (-len(body) % 8)
    return len(body).to_bytes(8, "little") + body


def _read(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:

        def array(name: str) -> Any:
            return stack.enter_context(safe_open(path, "numpy")).get_tensor(name)

        def tensor(name: str) -> Any:
            # cloned: out of the mapped file into torch's own aligned memory (kernels may round by alignment);
            # once per name: what was tied stays tied
            if "file" not in tensors:
                tensors["file"] = stack.enter_context(safe_open(path, "pt"))
            key = f"tensor {name}"
            if key not in tensors:
                tensors[key] = tensors["file"].get_tensor(name).clone()
            return tensors[key]

        try:
            with safe_open(path, "numpy") as file:
                metadata = file.metadata() or {}
            written = metadata.get("hpo_format", "none")
            if written != str(FORMAT):
                raise CheckpointError(f"Checkpoint {path} has format {written}; this version reads {FORMAT}: upgrade.")
            return unflatten(json.loads(metadata["hpo_tree"]), array, tensor)
        except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"Checkpoint {path} cannot be decoded: {type(error).__name__}: {error}.") from error


def _new_file(path: Path, mode: int) -> IO[bytes]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, mode), "wb", buffering=0)


def _make_folder(folder: Path, mode: int) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent, mode)
        folder.mkdir(exist_ok=True, mode=mode)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
