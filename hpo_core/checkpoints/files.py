"""Saves and loads checkpoints: one safetensors file each, written atomically, verified before use.

Written and read by this package itself: hashing, writing and fsync take one pass without a second copy in memory, and a
file is read straight into the memory of its tensors while it is hashed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from blake3 import blake3

from hpo_core.checkpoints.storage import local_copy, local_path, write
from hpo_core.checkpoints.tree_codec import (
    Block,
    empty_array,
    empty_tensor,
    file_parts,
    memory_of,
    stored_size,
    tree_parts,
    unflatten,
)
from hpo_core.model.errors import CheckpointError, StorageError
from hpo_core.model.trial import Checkpoint

FORMAT = 1
MODEL_NAMES = ("model", "module", "net", "network")
"""Usual names of a tracked model; asked in this order where several objects have weights."""
BLAKE3 = "blake3:"
"""Beginning of a digest by BLAKE3, a quarter of the time of SHA-256; one without it is a SHA-256."""


def parts_of(tree: Any) -> list[Any]:
    """The parts of a checkpoint's file, for ``memory_of``; tensors are where they were, on a GPU as well.

    Raises:
        CheckpointError: the tree contains a value that cannot be stored.
    """
    return tree_parts(tree, hpo_format=str(FORMAT))


def write_chunks(
    folder: str | Path,
    relative_path: str,
    chunks: Iterable[memoryview],
    *,
    resource: int,
    parent: str | None,
    durable: bool = True,
) -> Checkpoint:
    """Write a checkpoint durably and return the reference to it.

    Args:
        folder: the study's folder.
        relative_path: of the file within ``folder``; or a URL.
        chunks: bytes of the file; those of a tensor on the CPU are its own memory.
        resource: units of training that it stands for.
        parent: URI of the checkpoint that training started from.
        durable: whether it must survive a crash of the computer; False where it can be made again.

    Raises:
        StorageError: the folder cannot be written; no file is left behind.
    """
    content = _Digested(chunks)
    path = file_of(folder, relative_path)
    if path is None:
        write(relative_path, content)
    else:
        # In a folder that the user named (a URL), the user's umask decides who may read the files.
        _write_file(path, content, shared="://" in relative_path, durable=durable)
    told = f"{BLAKE3}{content.digest.hexdigest()}"
    return Checkpoint(uri=relative_path, digest=told, resource=resource, size=content.size, parent=parent)


def file_of(folder: str | Path, relative_path: str) -> Path | None:
    """File of a new checkpoint on this machine; None for a URL that needs fsspec.

    Raises:
        StorageError: a symbolic link is on the way to it.
    """
    try:  # the path is our own, but a folder on its way may be a link
        return local_path(folder, relative_path, "" if "://" not in relative_path else relative_path.rpartition("/")[0])
    except CheckpointError as error:
        raise StorageError(str(error)) from None


class _Digested:
    """The chunks, whose digest and size are known once they were iterated over; each time anew."""

    def __init__(self, chunks: Iterable[memoryview]) -> None:
        self.digest = blake3()
        self.size = 0
        self._chunks = chunks

    def __iter__(self) -> Iterator[memoryview]:
        self.digest, self.size = blake3(), 0
        for chunk in self._chunks:
            self.digest.update(chunk)
            self.size += len(chunk)
            yield chunk


def _write_file(path: Path, chunks: _Digested, *, shared: bool, durable: bool) -> None:
    partial = path.with_name(path.name + ".part")
    try:
        _make_folder(path.parent, 0o777 if shared else 0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(partial, flags, 0o666 if shared else 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for rest in chunks:
                while rest:
                    rest = rest[file.write(rest) :]
            if durable:
                os.fsync(file.fileno())
        partial.replace(path)
        if durable:
            _sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise StorageError(
            f"Checkpoint {path} ({chunks.size} bytes so far) cannot be written: {error.strerror or error}. "
            "Free space on that disk or make the folder writable, then resume the study."
        ) from error


def load(folder: str | Path, checkpoint: Checkpoint, base: str = "") -> Any:
    """Load a checkpoint after verifying its size and digest; returns its tree.

    Args:
        folder: the study's folder.
        base: folder or URL that it must be below (:func:`~hpo_core.checkpoints.storage.local_path`).

    Raises:
        CheckpointError: missing, truncated, corrupt, of a newer format, or not below ``base``.
        StorageError: the study's folder cannot be read now; the checkpoint itself may be good.
    """
    path = local_path(folder, checkpoint.uri, base)
    with local_copy(checkpoint.uri) if path is None else contextlib.nullcontext(path) as file:
        study = Path(folder) if "://" not in checkpoint.uri else file.parent if path is None else file.parent.parent
        with _opened(file, checkpoint, study) as opened:
            return _StoredTree(opened, checkpoint.size).read(checkpoint)


_CURE = "A resumed study goes on from an older one, or from the start."


@contextlib.contextmanager
def _opened(path: Path, checkpoint: Checkpoint, folder: Path) -> Iterator[io.FileIO]:
    """Context manager: the checkpoint's file, which has the size that was written.

    Raises:
        CheckpointError: missing or truncated.
        StorageError: ``folder``, the study's, or the file cannot be read now.
    """
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size != checkpoint.size:
                raise CheckpointError(f"Checkpoint {path} has {size} bytes, {checkpoint.size} were written. {_CURE}")
            yield file
    except FileNotFoundError as error:
        if not folder.is_dir():
            raise StorageError(
                f"Study folder {folder} is not there on this worker. Mount it, then resume the study."
            ) from error
        raise CheckpointError(f"Checkpoint {path} is missing. {_CURE}") from error
    except OSError as error:  # a fault of the disk: the checkpoint itself may be good
        raise StorageError(
            f"Checkpoint {path} cannot be read: {error.strerror or error}. Mend that, then resume the study."
        ) from error


def refuse_other_content(file: io.FileIO | io.BufferedReader, checkpoint: Checkpoint, name: str, cure: str) -> None:
    """Compare the digest of what an open file holds with the checkpoint's.

    Args:
        name: of the file, for the error.
        cure: what can be done, for the error.

    Raises:
        CheckpointError: it is not what was written.
    """
    digest = _digest_of(checkpoint)
    hashlib.file_digest(file, lambda: digest)
    _refuse_other_digest(digest, checkpoint, name, cure)


def _digest_of(checkpoint: Checkpoint) -> Any:
    return blake3() if checkpoint.digest.startswith(BLAKE3) else hashlib.sha256()


def _refuse_other_digest(digest: Any, checkpoint: Checkpoint, name: str, cure: str) -> None:
    found, wanted = digest.hexdigest(), checkpoint.digest.removeprefix(BLAKE3)
    if found != wanted:
        kind = "SHA-256" if wanted == checkpoint.digest else "BLAKE3"
        raise CheckpointError(f"{name} is corrupt: its {kind} is {found[:12]}..., {wanted[:12]}... was written. {cure}")


_PIECE = 1 << 20
"""Bytes that are read and hashed at once: they are in the processor's cache for the second."""


class _StoredTree:
    """The tree in an open checkpoint file, read straight into the memory of its tensors and arrays.

    Each has memory of its own, aligned as its library does it: kernels may round by alignment. They are filled while
    the file is hashed, and nobody sees them before the digest was compared.

    Args:
        file: at its beginning; ``size`` bytes long.
    """

    def __init__(self, file: io.FileIO, size: int) -> None:
        self._file = file
        self._size = size
        self._entries: dict[str, Any] = {}
        """By name of a block: what the header says of it."""
        self._start = 0
        """Position of the first block in the file."""
        self._values: dict[str, Any] = {}
        self._filled: list[tuple[int, memoryview]] = []
        """Position in the file of each block that the tree has, and its memory."""

    def read(self, checkpoint: Checkpoint) -> Any:
        """The tree.

        Raises:
            CheckpointError: it is not what was written, or of a newer format.
        """
        name, tree = f"Checkpoint {self._file.name}", None
        problem: Exception | None = None
        digest = _digest_of(checkpoint)
        head = self._exactly(min(8, self._size), digest)
        head += self._exactly(min(int.from_bytes(head, "little"), self._size - len(head)), digest)
        try:
            tree = self._tree(json.loads(head[8:]), len(head))
        except Exception as error:  # whatever json, numpy and torch make of a damaged header
            problem = error  # told once it is known that these bytes were written
            self._filled.clear()
        position = len(head)
        for start, memory in self._filled:
            self._fill(self._unused(start - position), digest)
            self._fill(iter([memory]), digest)
            position = start + len(memory)
        self._fill(self._unused(self._size - position), digest)
        _refuse_other_digest(digest, checkpoint, name, _CURE)
        if isinstance(problem, CheckpointError):
            raise problem
        if problem is not None:
            raise CheckpointError(f"{name} cannot be decoded: {type(problem).__name__}: {problem}.") from problem
        return tree

    def _tree(self, header: dict[str, Any], start: int) -> Any:
        metadata = header.pop("__metadata__", {})
        written = metadata.get("hpo_format", "none")
        if written != str(FORMAT):
            raise CheckpointError(
                f"Checkpoint {self._file.name} has format {written}; this version reads {FORMAT}: upgrade."
            )
        self._entries, self._start = header, start
        tree = unflatten(
            json.loads(metadata["hpo_tree"]),
            lambda block: self._value(block, empty_array),
            lambda block: self._value(block, empty_tensor),
        )
        self._filled.sort(key=lambda each: each[0])
        position = start
        for begin, memory in self._filled:
            if begin < position:
                raise ValueError("two blocks share bytes of the file")
            position = begin + len(memory)
        return tree

    def _value(self, name: str, empty: Callable[[str, Sequence[int]], tuple[Any, memoryview]]) -> Any:
        if name not in self._values:
            entry = self._entries[name]
            begin, end = entry["data_offsets"]
            size = stored_size(entry["dtype"], entry["shape"])
            if not 0 <= begin <= end <= self._size - self._start or end - begin != size:
                raise ValueError(f"block {name!r} does not lie in the file")
            self._values[name], memory = empty(entry["dtype"], entry["shape"])
            self._filled.append((self._start + begin, memory))
        return self._values[name]

    def _exactly(self, size: int, digest: Any) -> bytes:
        data = bytearray(size)
        self._fill(iter([memoryview(data)]), digest)
        return bytes(data)

    @staticmethod
    def _unused(size: int) -> Iterator[memoryview]:
        scratch = memoryview(bytearray(min(size, _PIECE)))
        while size > 0:
            yield scratch[:size]
            size -= len(scratch)

    def _fill(self, memories: Iterator[memoryview], digest: Any) -> None:
        """Read so much, and hash it.

        Raises:
            OSError: the file ends before.
        """
        for memory in memories:
            while memory:
                count = self._file.readinto(memory[:_PIECE])
                if not count:
                    raise OSError("it became shorter while it was read")
                digest.update(memory[:count])
                memory = memory[count:]


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
    except OSError:
        raise
    except Exception as error:  # whatever json makes of another file's bytes
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
    _write_file(
        target,
        _Digested(map(memory_of, file_parts({"format": "pt", "tracked": name}, weights))),
        shared=True,
        durable=False,
    )
    return name


def _state_dict(node: Any) -> dict[str, str]:
    if not isinstance(node, dict):
        return {}
    found = {}
    for key, value in list(node["dict"].items()) if "dict" in node else node.get("ordered", ()):
        block = value.get("tensor", value.get("array")) if isinstance(value, dict) and "dtype" not in value else None
        if not isinstance(key, str) or not isinstance(block, str):
            return {}
        found[key] = block
    return found
