"""Where checkpoint files lie: below the study's folder, or at a URL that fsspec knows (``s3://bucket/hpo``).

A file behind a URL is written under its final name: object stores show an object when it is complete, and on the
others a torn file is named by no result, for a reference is only reported once the filesystem said that the file is
closed and as long as it should be; size and digest are verified at every load besides. How durable a closed file is,
is the filesystem's own affair; there is no fsync. ``file://`` is a local folder and gets the local treatment.

A URI comes out of a journal, which others may have written. Before anything is loaded, copied or removed it is
compared with the study's base folder (:func:`local_path`): it must lie below it, with no ``..`` in it and no symbolic
link on the way.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from hpo_core.checkpoints.paths import files_of_attempt
from hpo_core.model.errors import CheckpointError, StorageError

log = logging.getLogger(__name__)
_CURE = "Check that it can be reached with the credentials of this process, then resume the study."


def local_path(folder: str | Path, uri: str, base: str = "") -> Path | None:
    """Where a checkpoint lies on this machine; None where fsspec must be asked.

    Args:
        folder: of the study.
        base: relative to ``folder``, or a URL: the study's ``checkpoint_base``. Default: ``folder`` itself.

    Raises:
        CheckpointError: it does not lie below ``base``, or a symbolic link is on the way from there.
    """
    prefix = base.rstrip("/") + "/" if base else ""
    below = uri.removeprefix(prefix)
    plain = unquote(below) if "://" in uri else below
    if not uri.startswith(prefix) or "://" in below or any(part in ("", ".", "..") for part in plain.split("/")):
        raise CheckpointError(
            f"Checkpoint {uri!r} does not lie below {base or str(folder)!r}, where this study has its checkpoints; it "
            "is neither read nor removed. Nobody but this package should write to journal and registry."
        )
    if "://" not in uri:
        return _without_links(Path(folder), uri)
    parts = urlsplit(base)
    return _without_links(Path(unquote(parts.path)), plain) if parts.scheme == "file" else None


def _without_links(top: Path, below: str) -> Path:
    """Who planted a link may have us load or remove what it points to."""
    path = top
    for part in below.split("/"):
        path = path / part
        if path.is_symlink():
            raise CheckpointError(
                f"Checkpoint {top / below}: {path} is a symbolic link, and none is followed there. Put the real one "
                "in its place; for checkpoints elsewhere set checkpoints.folder in the study."
            )
    return path


def write(uri: str, chunks: Iterable[memoryview], size: int) -> None:
    """Write a file behind a URL.

    Raises:
        StorageError: whatever went wrong; nothing names what may be left.
    """
    try:
        filesystem, path = _resolve(uri)
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        with filesystem.open(path, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
        filesystem.invalidate_cache()
        written = filesystem.size(path)
    except Exception as error:
        raise StorageError(f"Checkpoint {uri} cannot be written: {_text(error)}. {_CURE}") from error
    if written != size:
        raise StorageError(f"Checkpoint {uri} has {written} bytes after {size} were written to it. {_CURE}")


@contextlib.contextmanager
def fetched(uri: str) -> Iterator[Path]:
    """A copy, on this machine, of the file behind a URL.

    Raises:
        CheckpointError: it is not there.
        StorageError: its filesystem cannot be reached, or its bucket (or top folder) is not there.
    """
    with tempfile.TemporaryDirectory(prefix="hpo-checkpoint-") as folder:
        copy = Path(folder) / "checkpoint.safetensors"
        try:
            filesystem, path = _resolve(uri)
            found = filesystem.exists(path)
            if found:
                filesystem.get_file(path, str(copy))
            else:
                root = path[: path.find("/", 1)]
                there = filesystem.exists(root)
        except Exception as error:
            raise StorageError(f"Checkpoint {uri} cannot be read: {_text(error)}. {_CURE}") from error
        if not found:
            if not there:
                raise StorageError(f"Checkpoint {uri} cannot be read: there is no {root}. {_CURE}")
            raise CheckpointError(
                f"Checkpoint {uri} is missing. The trial must go back to an older checkpoint or start from 0."
            )
        yield copy


def remove(folder: str | Path, uri: str, base: str = "") -> None:
    """Remove a checkpoint file. Housekeeping ends nothing: what cannot be removed now is swept the next time.

    What does not lie below ``base`` is not removed.
    """
    try:
        local = local_path(folder, uri, base)
    except CheckpointError as error:
        log.warning("%s", error)
        return
    if local is not None:
        with contextlib.suppress(OSError):
            local.unlink(missing_ok=True)
        return
    with contextlib.suppress(Exception):
        filesystem, path = _resolve(uri)
        filesystem.rm_file(path)


def files_of(folder: str | Path, base: str, trial: int, attempt: int) -> list[str]:
    """URIs of the files, whole or begun, that an attempt may have written."""
    return _found(folder, files_of_attempt(trial, attempt, base))


def all_files(folder: str | Path, base: str) -> list[str]:
    """URIs of all checkpoint files of a study."""
    return _found(folder, f"{base}/*/*")


def _found(folder: str | Path, pattern: str) -> list[str]:
    if "://" not in pattern:
        names = [path.relative_to(folder).as_posix() for path in Path(folder).glob(pattern)]
        return [name for name in names if not _leads_away(Path(folder), name)]
    try:
        filesystem, path = _resolve(pattern)
        filesystem.invalidate_cache()
        head = pattern[: len(pattern) - len("/".join(pattern.rsplit("/", 2)[1:]))]  # the base, as its results write it
        return [head + "/".join(name.rsplit("/", 2)[1:]) for name in filesystem.glob(path)]
    except Exception:
        return []


def _leads_away(folder: Path, name: str) -> bool:
    try:
        _without_links(folder, name)
    except CheckpointError:
        return True
    return False


def _resolve(uri: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    filesystem, path = url_to_fs(uri)
    return filesystem, str(path)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
