"""Fingerprint of training data: by content for a file or folder, else by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from hpo_core.model.errors import StorageError

_BLOCK = 1 << 20


def fingerprint(data: str) -> str:
    """SHA-256 of a file or folder (relative paths and bytes); of the text itself for anything else.

    Links are followed. A name of changing content (a table, a URL) must contain a version, for its content is not read.

    Raises:
        StorageError: a file cannot be read, or a folder leads back into itself.
    """
    path = Path(data)
    digest = hashlib.sha256()
    try:
        if path.is_dir():
            for file in sorted(_files(path, ())):
                digest.update(b"\0" + file.relative_to(path).as_posix().encode() + b"\0")
                _add(file, digest)
        elif path.is_file():
            _add(path, digest)
        else:
            digest.update(b"name\0" + data.encode())
    except OSError as error:
        raise StorageError(f"Data {data!r} cannot be read ({error}). Check the path and its permissions.") from None
    return digest.hexdigest()


def absolute_path(data: str) -> str:
    """The absolute path of a file or folder, for processes with another working folder; other names stay."""
    path = Path(data)
    return str(path.resolve()) if path.exists() else data


def _files(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """All files below a folder, also through links; ``above`` are its resolved parents."""
    real = folder.resolve()
    if real in above:
        raise StorageError(f"Data folder {folder} leads back into itself (to {real}). Remove that link.")
    for item in folder.iterdir():
        if item.is_dir():
            yield from _files(item, (*above, real))
        elif item.is_file():
            yield item


def _add(file: Path, digest: hashlib._Hash) -> None:
    digest.update(file.stat().st_size.to_bytes(8, "little"))
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
