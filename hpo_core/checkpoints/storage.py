"""Checkpoint storage: files in the study's folder, or at a URL that fsspec supports (``s3://bucket/hpo``).

A file at a URL is written under its final name. Object stores show an object only once it is complete. Elsewhere no
result refers to an incomplete file: a reference is reported only after the filesystem closed the file and its size is
right, and size and digest are verified at every load. There is no fsync: durability is up to the filesystem.
Writing and reading are tried again for :data:`RETRY_SECONDS`, so that a server may restart meanwhile.
``file://`` is treated as a local folder.

A URI is read from a journal, which others may have written. Before anything is loaded, copied or removed, it is
compared with the study's base folder (:func:`local_path`): it must be below it, without ``..`` and without a symbolic
link on the way.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from hpo_core.model.errors import CheckpointError, StorageError
from hpo_core.model.trial import Job

CHECKPOINTS = "checkpoints"
"""Folder of checkpoints within the study's folder, unless ``checkpoints.folder`` names another one."""
HOPS = "hops"
"""Folder of the states of models that hop, within the study's folder; or below the URL of its checkpoints."""
GANGS = "gangs"
"""Folder of the files through which ranks of gangs find each other, within the study's folder."""


def attempt_name(trial: int, attempt: int) -> str:
    return f"trial-{trial:05d}-attempt-{attempt}"


def log_path(trial: int, attempt: int, rank: int = 0) -> str:
    """Path of the attempt's log, relative to the study's folder; the ranks of a gang after the first have their own."""
    return f"logs/{attempt_name(trial, attempt)}{f'.rank-{rank}' if rank else ''}.log"


def gang_store_path(trial: int, attempt: int, token: str) -> str:
    """Path of the file through which the ranks of a gang find each other, relative to the study's folder."""
    return f"{GANGS}/{attempt_name(trial, attempt)}-{token}"


def checkpoint_path(job: Job, base: str = CHECKPOINTS) -> str:
    """Path of the job's checkpoint: relative to the study's folder, or a URL if ``base`` is one."""
    return f"{base}/trial-{job.trial:05d}/rung-{job.stage.rung}-attempt-{job.attempt}.safetensors"


def is_remote(base: str) -> bool:
    """True if it is a URL that needs fsspec; ``file://`` is a folder."""
    return "://" in base and not base.startswith("file://")


def hop_base(base: str = CHECKPOINTS) -> str:
    """Folder of the states of models that hop, relative to the study's folder, or a URL if ``base`` is one."""
    return f"{base}/{HOPS}" if is_remote(base) else HOPS


def hop_path(trial: int, attempt: int, number: int, base: str = CHECKPOINTS) -> str:
    """Path of the state that a unit leaves for the next one: relative to the study's folder, or a URL."""
    return f"{hop_base(base)}/trial-{trial:05d}/attempt-{attempt}-unit-{number:06d}.safetensors"


def files_of_attempt(trial: int, attempt: int, base: str = CHECKPOINTS) -> str:
    return f"{base}/trial-{trial:05d}/*-attempt-{attempt}.safetensors*"


RETRY_SECONDS = 60.0
"""Seconds for which writing and reading at a URL are tried again."""
_BRIEFLY = 1.0
"""The same for what is done again later: a connection that was idle for long may be closed."""
_LONGEST_PAUSE = 5.0
_PERMANENT = (FileNotFoundError, PermissionError, ImportError, ValueError, TypeError, NotImplementedError)
"""Errors that another try would meet again."""
_T = TypeVar("_T")
log = logging.getLogger(__name__)
_CURE = "Check that it can be reached with the credentials of this process, then resume the study."


def local_path(folder: str | Path, uri: str, base: str = "") -> Path | None:
    """Path of a checkpoint on this machine; None for a URL that needs fsspec.

    Args:
        folder: the study's folder.
        uri: path relative to ``folder``, or a URL.
        base: the study's ``checkpoint_base``: relative to ``folder``, or a URL. Default: ``folder`` itself.

    Raises:
        CheckpointError: it is not below ``base``, or a symbolic link is on the way from there.
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
    # Join both and refuse symbolic links: through one, another user could have us load or remove any file.
    if (link := _first_link(top, below)) is not None:
        raise CheckpointError(
            f"Checkpoint {top / below}: {link} is a symbolic link, and none is followed there. Put the real one in its "
            "place; for checkpoints elsewhere set checkpoints.folder in the study."
        )
    return top / below


def _first_link(top: Path, below: str) -> Path | None:
    places = itertools.accumulate(below.split("/"), Path.__truediv__, initial=top)
    return next((place for place in itertools.islice(places, 1, None) if place.is_symlink()), None)


def write(uri: str, chunks: Iterable[memoryview], *, retry_seconds: float = RETRY_SECONDS) -> None:
    """Write a file to a URL, and look whether it has as many bytes then.

    Args:
        chunks: the file's bytes, in order; iterated over anew for each try.

    Raises:
        StorageError: it could not be written; no result refers to what may be left.
    """

    def filled(filesystem: Any, path: str) -> int:
        size = 0
        with filesystem.open(path, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
                size += len(chunk)
        return size

    def once(filesystem: Any, path: str) -> tuple[int, int]:
        try:
            size = filled(filesystem, path)
        except FileNotFoundError:
            root = _root_of(path)
            if not _is_there(filesystem, root):  # makedirs would make the bucket
                raise FileNotFoundError(f"there is no {root}") from None
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            size = filled(filesystem, path)
        filesystem.invalidate_cache()
        return size, filesystem.size(path)

    try:
        size, written = _tried(uri, once, retry_seconds)
    except Exception as error:
        raise StorageError(f"Checkpoint {uri} cannot be written: {_error_text(error)}. {_CURE}") from error
    if written != size:
        raise StorageError(f"Checkpoint {uri} has {written} bytes after {size} were written to it. {_CURE}")


@contextlib.contextmanager
def local_copy(uri: str, *, retry_seconds: float = RETRY_SECONDS) -> Iterator[Path]:
    """Context manager: a temporary local copy of the file at a URL.

    Raises:
        CheckpointError: there is no such file.
        StorageError: its filesystem cannot be reached, or its bucket (or top folder) does not exist.
    """
    with tempfile.TemporaryDirectory(prefix="hpo-checkpoint-") as folder:
        copy = Path(folder) / "checkpoint.safetensors"

        def once(filesystem: Any, path: str) -> str | None:
            try:
                filesystem.get_file(path, str(copy))
                return None
            except FileNotFoundError:
                root = _root_of(path)
                return "" if _is_there(filesystem, root) else root

        try:
            missing = _tried(uri, once, retry_seconds)
        except Exception as error:
            raise StorageError(f"Checkpoint {uri} cannot be read: {_error_text(error)}. {_CURE}") from error
        if missing:
            raise StorageError(f"Checkpoint {uri} cannot be read: there is no {missing}. {_CURE}")
        if missing is not None:
            raise CheckpointError(
                f"Checkpoint {uri} is missing. A resumed study goes on from an older one, or from the start."
            )
        yield copy


@contextlib.contextmanager
def on_this_machine(folder: str | Path, uri: str, base: str = "") -> Iterator[Path]:
    """Context manager: a checkpoint's file, downloaded where it lies at a URL; raises as the two above."""
    if (local := local_path(folder, uri, base)) is not None:
        yield local
    else:
        with local_copy(uri) as copy:
            yield copy


def _tried(uri: str, action: Callable[[Any, str], _T], retry_seconds: float) -> _T:
    ends, pause = time.monotonic() + retry_seconds, 0.1
    while True:
        filesystem = None
        try:
            from fsspec.core import url_to_fs

            filesystem, path = url_to_fs(uri)
            return action(filesystem, str(path))
        except _PERMANENT:
            raise
        except Exception as error:
            if filesystem is not None:
                type(filesystem).clear_instance_cache()  # else fsspec gives us the broken connection again
            if time.monotonic() + pause >= ends:
                raise
            log.warning("%s: %s. It is tried again.", uri, _error_text(error))
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, 2 * pause)


def import_filesystem(base: str) -> None:
    """Import what a URL needs, and connect to nothing; a package that is missing is told when the URL is used."""
    if is_remote(base):
        from fsspec import get_filesystem_class

        with contextlib.suppress(Exception):
            get_filesystem_class(base.partition("://")[0])


def check_base(base: str) -> None:
    """Write a small file at a URL and remove it; a folder of this computer is not looked at.

    Raises:
        StorageError: this process cannot write there.
    """
    if not is_remote(base):
        return
    probe = f"{base}/probe-{socket.gethostname()}-{os.getpid()}"
    write(probe, [memoryview(b"hpo")], retry_seconds=0.0)
    with contextlib.suppress(Exception):
        _tried(probe, lambda filesystem, path: filesystem.rm_file(path), _BRIEFLY)


def exists(folder: str | Path, uri: str, base: str) -> bool:
    """True if a file is there that lies below ``base``; False where its filesystem cannot be reached."""
    try:
        local = local_path(folder, uri, base)
        if local is not None:
            return local.is_file()

        def once(filesystem: Any, path: str) -> bool:
            filesystem.invalidate_cache()
            return _is_there(filesystem, path)

        return _tried(uri, once, _BRIEFLY)
    except Exception:
        return False


def remove(folder: str | Path, uri: str, base: str = "") -> None:
    """Remove a checkpoint file; raises nothing, for a later clean-up will try again.

    A file that is not below ``base`` is not removed.
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
        _tried(uri, lambda filesystem, path: filesystem.rm_file(path), _BRIEFLY)


def attempt_files(folder: str | Path, base: str, trial: int, attempt: int) -> list[str]:
    """URIs of the existing checkpoint files, complete or not, of one attempt."""
    return _matching_uris(folder, files_of_attempt(trial, attempt, base))


def all_files(folder: str | Path, base: str) -> list[str]:
    """URIs of all existing checkpoint files of a study."""
    return _matching_uris(folder, f"{base}/trial-*/*")


def hop_files(folder: str | Path, base: str, trial: int | None = None) -> list[str]:
    """URIs of the existing states of models that hop: of one trial, or of all."""
    return _matching_uris(folder, f"{hop_base(base)}/trial-{'*' if trial is None else f'{trial:05d}'}/*.safetensors*")


def _matching_uris(folder: str | Path, pattern: str) -> list[str]:
    if "://" not in pattern:
        names = [path.relative_to(folder).as_posix() for path in Path(folder).glob(pattern)]
        return [name for name in names if not _first_link(Path(folder), name)]

    def once(filesystem: Any, path: str) -> list[str]:
        filesystem.invalidate_cache()
        _is_there(filesystem, _root_of(path))  # for its error: a glob over a broken connection finds nothing
        return list(filesystem.glob(path))

    head = pattern[: len(pattern) - len("/".join(pattern.rsplit("/", 2)[1:]))]  # the base, as its results write it
    try:
        return [head + "/".join(name.rsplit("/", 2)[1:]) for name in _tried(pattern, once, _BRIEFLY)]
    except Exception:
        return []


def _root_of(path: str) -> str:
    return path[: path.find("/", 1)]


def _is_there(filesystem: Any, path: str) -> bool:
    try:
        filesystem.info(path)
    except FileNotFoundError:
        return False
    return True


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


DRAIN_SECONDS = 60.0
"""Seconds that the end of a study waits for removals at a URL; what is left then, the next sweep removes."""


class Removals:
    """Removes files of one study, at once or, at a URL, one after the other in a background thread.

    A server that does not answer holds a request for minutes, and the thread that asks for the removal renews the
    study's lease.

    Args:
        folder: of the study.
        base: folder or URL that the files must be below.
    """

    def __init__(self, folder: str | Path, base: str) -> None:
        self._folder, self._base = folder, base
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._at_once = not is_remote(base)

    def remove(self, uri: str) -> None:
        self.run(lambda: remove(self._folder, uri, self._base))

    def run(self, work: Callable[[], None]) -> None:
        """Call a function that removes files, where this class would remove one."""
        if self._at_once:
            work()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="hpo-removals", daemon=True)
            self._thread.start()
        self._waiting.put(work)

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Wait until what was asked for is done, at most so long."""
        if self._thread is not None:
            done = threading.Event()
            self._waiting.put(done.set)
            done.wait(seconds)

    def _work(self) -> None:
        while True:
            self._waiting.get()()
