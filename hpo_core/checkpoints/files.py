"""Saves and loads checkpoints: one safetensors file each, written atomically, verified before use.

Written by this package itself, so that hashing, writing and fsync take one pass without a second copy in memory. The
safetensors library reads the file and checks its header.

All seed repeats of a trial share one file. The best repeat's state lies where that of a trial without repeats lies:
whatever reads one model (evaluation, weights alone, MLflow) reads that one. The others lie beside it under names of
their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blake3 import blake3

from hpo_core.checkpoints.storage import local_copy, local_path, write
from hpo_core.checkpoints.tree_codec import Block, file_chunks, tree_chunks, unflatten
from hpo_core.model.errors import CheckpointError, StorageError
from hpo_core.model.trial import Checkpoint

FORMAT = 1
MODEL_NAMES = ("model", "module", "net", "network")
"""What a tracked model is usually called; asked in this order where several objects have weights."""
BLAKE3 = "blake3:"
"""Beginning of a digest by BLAKE3, a quarter of the time of SHA-256; one without it is a SHA-256."""
BEST = "hpo_repeat"
"""Metadata of a checkpoint of several seed repeats: number of the one whose state is that of the file."""


def save(
    folder: str | Path,
    relative_path: str,
    tree: Any,
    *,
    resource: int,
    parent: str | None = None,
    durable: bool = True,
) -> Checkpoint:
    """Write a checkpoint durably and return the reference to it.

    Args:
        folder: the study's folder.
        relative_path: of the file within ``folder``; or a URL.
        tree: tensors, arrays and plain values in dicts and lists (``tree_codec``).
        resource: units of training that it stands for.
        parent: URI of the checkpoint that training started from.
        durable: whether it must survive a crash of the computer; False where it can be made again.

    Raises:
        CheckpointError: the tree contains a value that cannot be stored.
        StorageError: the folder cannot be written; no file is left behind.
    """
    return write_chunks(folder, relative_path, chunks_of(tree), resource=resource, parent=parent, durable=durable)


def chunks_of(tree: Any) -> list[memoryview]:
    """The bytes of a checkpoint; those of tensors on the CPU are the tensors' own memory.

    Raises:
        CheckpointError: the tree contains a value that cannot be stored.
    """
    return tree_chunks(tree, hpo_format=str(FORMAT))


def write_chunks(
    folder: str | Path,
    relative_path: str,
    chunks: Sequence[memoryview],
    *,
    resource: int,
    parent: str | None,
    durable: bool = True,
) -> Checkpoint:
    """Write the bytes of a checkpoint and return the reference to it; see :func:`save`."""
    try:  # the path is our own, but a folder on its way may be a link
        path = local_path(folder, relative_path, "" if "://" not in relative_path else relative_path.rpartition("/")[0])
    except CheckpointError as error:
        raise StorageError(str(error)) from None
    if path is None:
        digest = blake3()
        for chunk in chunks:
            digest.update(chunk)
        write(relative_path, chunks, sum(map(len, chunks)))
    else:
        # In a folder that the user named (a URL), the user's umask decides who may read the files.
        digest = _write_file(path, chunks, shared="://" in relative_path, durable=durable)
    size = sum(map(len, chunks))
    told = f"{BLAKE3}{digest.hexdigest()}"
    return Checkpoint(uri=relative_path, digest=told, resource=resource, size=size, parent=parent)


def _write_file(path: Path, chunks: Sequence[memoryview], *, shared: bool, durable: bool) -> blake3:
    """Write a file atomically, and durably if asked to; return the BLAKE3 of its content."""
    partial = path.with_name(path.name + ".part")
    digest = blake3()
    size = 0
    try:
        _make_folder(path.parent, 0o777 if shared else 0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(partial, flags, 0o666 if shared else 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                rest = chunk
                while rest:
                    rest = rest[file.write(rest) :]
            if durable:
                os.fsync(file.fileno())
        partial.replace(path)
        if durable:
            _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise StorageError(
            f"Checkpoint {path} ({size or len(chunks[0])} bytes so far) cannot be written: {error.strerror or error}. "
            "Free space on that disk or make the folder writable, then resume the study."
        ) from error
    return digest


def load(folder: str | Path, checkpoint: Checkpoint, base: str = "", *, repeat: int | None = None) -> Any:
    """Load a checkpoint after verifying its size and digest; returns its tree.

    Args:
        folder: the study's folder.
        base: folder or URL that it must be below (:func:`~hpo_core.checkpoints.storage.local_path`).
        repeat: number of the seed repeat whose state is wanted; None: that of the best one, or the only one.

    Raises:
        CheckpointError: missing, truncated, corrupt, of a newer format, or not below ``base``.
        StorageError: the study's folder cannot be read now; the checkpoint itself may be good.
    """
    path = local_path(folder, checkpoint.uri, base)
    with local_copy(checkpoint.uri) if path is None else contextlib.nullcontext(path) as file:
        study = Path(folder) if "://" not in checkpoint.uri else file.parent if path is None else file.parent.parent
        verify(file, checkpoint, study)
        return _read(file, repeat)


def verify(path: Path, checkpoint: Checkpoint, folder: Path) -> None:
    """Compare a file's size and digest with its reference.

    Raises:
        CheckpointError: missing, truncated or corrupt.
        StorageError: ``folder``, the study's, cannot be read now.
    """
    cure = "The trial must go back to an older checkpoint or start from 0."
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != checkpoint.size:
                raise CheckpointError(f"Checkpoint {path} has {size} bytes, {checkpoint.size} were written. {cure}")
            refuse_other_content(file, checkpoint, f"Checkpoint {path}", cure)
    except FileNotFoundError as error:
        if not folder.is_dir():
            raise StorageError(
                f"Study folder {folder} is not there on this worker. Mount it, then resume the study."
            ) from error
        raise CheckpointError(f"Checkpoint {path} is missing. {cure}") from error
    except OSError as error:  # a fault of the disk: the checkpoint itself may be good
        raise StorageError(
            f"Checkpoint {path} cannot be read: {error.strerror or error}. Mend that, then resume the study."
        ) from error


def refuse_other_content(file: io.BufferedReader, checkpoint: Checkpoint, name: str, cure: str) -> None:
    """Compare the digest of what an open file holds with the checkpoint's.

    Args:
        name: of the file, for the error.
        cure: what can be done, for the error.

    Raises:
        CheckpointError: it is not what was written.
    """
    known = checkpoint.digest.startswith(BLAKE3)
    found = hashlib.file_digest(file, blake3 if known else "sha256").hexdigest()  # type: ignore[arg-type]
    wanted = checkpoint.digest.removeprefix(BLAKE3)
    if found != wanted:
        kind = "BLAKE3" if known else "SHA-256"
        raise CheckpointError(f"{name} is corrupt: its {kind} is {found[:12]}..., {wanted[:12]}... was written. {cure}")


def tree_key(repeat: int, best: int) -> str:
    """Metadata key of a repeat's tree."""
    return "hpo_tree" if repeat == best else f"hpo_tree_{repeat}"


def block_name(name: str, repeat: int, best: int) -> str:
    """Name in the file of a block that is called ``name`` in a repeat's tree."""
    return name if repeat == best else f"repeat {repeat}: {name}"


def _read(path: Path, repeat: int | None) -> Any:
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:

        def array(name: str) -> Any:
            return stack.enter_context(safe_open(path, "numpy")).get_tensor(block_name(name, number, best))

        def tensor(name: str) -> Any:
            # cloned: out of the mapped file into torch's own aligned memory (kernels may round by alignment);
            # once per name: what was tied stays tied
            if "file" not in tensors:
                tensors["file"] = stack.enter_context(safe_open(path, "pt"))
            key = f"tensor {name}"
            if key not in tensors:
                tensors[key] = tensors["file"].get_tensor(block_name(name, number, best)).clone()
            return tensors[key]

        try:
            with safe_open(path, "numpy") as file:
                metadata = file.metadata() or {}
            written = metadata.get("hpo_format", "none")
            if written != str(FORMAT):
                raise CheckpointError(f"Checkpoint {path} has format {written}; this version reads {FORMAT}: upgrade.")
            best = int(metadata.get(BEST, 0))
            number = best if repeat is None else repeat
            if repeat is not None and (BEST not in metadata or tree_key(number, best) not in metadata):
                raise CheckpointError(f"Checkpoint {path} holds no state of seed repeat {repeat}.")
            return unflatten(json.loads(metadata[tree_key(number, best)]), array, tensor)
        except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"Checkpoint {path} cannot be decoded: {type(error).__name__}: {error}.") from error


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


def mapped(path: Path) -> tuple[dict[str, str], dict[str, Block]]:
    """Metadata and blocks of a checkpoint file, whose bytes are mapped and not read.

    Raises:
        CheckpointError: the file is no checkpoint of this package.
    """
    try:
        with path.open("rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        start = 8 + int.from_bytes(view[:8], "little")
        header = json.loads(bytes(view[8:start]))
        metadata: dict[str, str] = header.pop("__metadata__")
        metadata["hpo_tree"]
        blocks = {
            name: Block(entry["dtype"], tuple(entry["shape"]), view[start:][slice(*entry["data_offsets"])])
            for name, entry in header.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"Checkpoint {path} was not written by this package.") from error
    return metadata, blocks


def write_weights(checkpoint: Path, target: Path) -> str:
    """Write the weights in a checkpoint to ``target``, a safetensors file that any program loads.

    They are copied block by block, without torch and without loading them: keys, types and bytes are those of the
    model's ``state_dict()``. Tied weights are written once for each of their keys.

    Args:
        checkpoint: a file whose digest was verified.

    Returns:
        The name that the model was tracked under.

    Raises:
        CheckpointError: no tracked object has weights and nothing else, or several do and none is called ``model``.
    """
    metadata, blocks = mapped(checkpoint)
    try:
        tracked: dict[str, Any] = json.loads(metadata["hpo_tree"])["dict"]["tracked"]["dict"]
    except (KeyError, TypeError):
        tracked = {}
    found = {name: keys for name, node in tracked.items() if (keys := _state_dict(node))}
    name: str | None = next((one for one in (*MODEL_NAMES, *(found if len(found) == 1 else ())) if one in found), None)
    if name is None:
        what = ", ".join(map(repr, tracked)) or "nothing"
        which = f"{', '.join(map(repr, found))} have" if found else f"none of {what} has"
        raise CheckpointError(
            f"Checkpoint {checkpoint}: of what was tracked, {which} a state_dict of tensors and nothing else. Track "
            "the model as trial.track(model=...)."
        )
    weights = {key: blocks[block] for key, block in sorted(found[name].items())}
    _write_file(target, file_chunks({"format": "pt", "tracked": name}, weights), shared=True, durable=False)
    return name


def _state_dict(node: Any) -> dict[str, str]:
    """Block by key, of a dict of tensors or arrays; empty for anything else."""
    if not isinstance(node, dict):
        return {}
    found = {}
    for key, value in list(node["dict"].items()) if "dict" in node else node.get("ordered", ()):
        block = value.get("tensor", value.get("array")) if isinstance(value, dict) and "dtype" not in value else None
        if not isinstance(key, str) or not isinstance(block, str):
            return {}
        found[key] = block
    return found


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
        metadata = {"hpo_format": str(FORMAT), BEST: str(best)}
        blocks: dict[str, Block] = {}
        for repeat, part in enumerate(parts):
            path = local_path(folder, part.uri, base)
            if path is None:
                path = stack.enter_context(local_copy(part.uri))
            verify(path, part, Path(folder))
            own, own_blocks = mapped(path)
            metadata[tree_key(repeat, best)] = own["hpo_tree"]
            blocks |= {block_name(name, repeat, best): block for name, block in own_blocks.items()}
        chunks = file_chunks(metadata, blocks)
        return write_chunks(folder, relative_path, chunks, resource=parts[0].resource, parent=parent)
