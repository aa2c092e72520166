"""Makes and opens folders and files that only their user may read (modes 0700 and 0600).

Another user's symbolic link where we write would make us write, empty or delete what it points to. So nothing below a
home folder may be a link or belong to another user. Files of root are accepted, and root accepts every owner (a
container often runs as root on a volume of another user).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import logging
import os
import stat
import threading
from pathlib import Path
from typing import IO, Literal

from hpo_core.model.errors import HpoError, StorageError

FOLDER_MODE = 0o700
FILE_MODE = 0o600

log = logging.getLogger("hpo.home")


def private_folder(path: str | Path, *, below: str | Path | None = None) -> Path:
    """Make a folder with mode 0700, or check an existing one and remove other users' permissions.

    Args:
        below: a parent of ``path``; all folders from it (included) to ``path`` are treated alike. Default: ``path``
            alone; missing parents are made with mode 0700, too.

    Raises:
        StorageError: it is a link or no folder, belongs to another user, or cannot be made.
    """
    path = Path(path)
    chain = _chain(path, below)
    try:
        if not chain[0].parent.exists():
            private_folder(chain[0].parent)
        for folder in chain:  # one by one: below a link nothing may be made
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=FOLDER_MODE)
            _remove_group_permissions(folder)
    except OSError as error:
        raise _access_error(f"Folder {path}", error) from None
    return path


def check_folder(path: str | Path, *, below: str | Path | None = None) -> None:
    """Check that no folder from ``below`` (included) to ``path`` is a link or belongs to another user.

    Nothing is changed; a missing folder is no error.

    Raises:
        StorageError: one is a link, no folder, or another user's.
    """
    for folder in _chain(Path(path), below):
        _inspect(folder, "folder")


def _chain(path: Path, below: str | Path | None) -> list[Path]:
    top = path if below is None else Path(below)
    return list(itertools.accumulate(path.relative_to(top).parts, Path.__truediv__, initial=top))


def check_file(path: str | Path) -> None:
    """Check that a file is a regular one of this user; a missing file is no error.

    Raises:
        StorageError: it is a link, no regular file, or another user's.
    """
    _inspect(Path(path), "file")


def check_tree(folder: str | Path) -> None:
    """Check that nothing in a folder, however deep, is a link or belongs to another user.

    For what other programs write, which follow links. Nothing is changed; a missing folder is no error.

    Raises:
        StorageError: names the first that is.
    """
    _inspect(Path(folder), "folder")
    for place, folders, files in os.walk(folder):
        for name in folders:
            _inspect(Path(place, name), "folder")
        for name in files:
            _inspect(Path(place, name), "file")


def private_database(path: str | Path) -> None:
    """Make an empty SQLite file of mode 0600, or remove other users' permissions from an existing one.

    An existing file is never opened here: closing it would release the locks that SQLite holds on it in this process.
    """
    path = Path(path)
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            open_private(path, "xb").close()
    for temporary in ("", "-wal", "-shm"):  # SQLite gives the other two the mode of the first
        _restrict_mode(path.with_name(path.name + temporary))


def _restrict_mode(path: Path) -> None:
    with contextlib.suppress(OSError):
        found = path.stat()
        if stat.S_IMODE(found.st_mode) & 0o077 and found.st_uid == os.geteuid():
            path.chmod(FILE_MODE)


def open_private(path: str | Path, mode: Literal["rb", "wb", "ab", "xb"]) -> IO[bytes]:
    """Open a file of this user; it is made with mode 0600 if missing, except for reading.

    Raises:
        FileNotFoundError: mode ``rb``, and it is missing.
        FileExistsError: mode ``xb``, and it exists.
        StorageError: it is a link or no regular file, belongs to another user, or cannot be opened.
    """
    flags = {
        "rb": os.O_RDONLY,
        "wb": os.O_WRONLY | os.O_CREAT,  # emptied only after its owner was checked
        "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
        "xb": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    }[mode]
    try:
        # O_NONBLOCK: opening a pipe that another user put there must not wait for its other end.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        raise _access_error(f"File {path}", error) from None
    try:
        found = os.fstat(descriptor)
        _check_kind_and_owner(Path(path), found, "file")
        os.set_blocking(descriptor, True)
        if stat.S_IMODE(found.st_mode) & 0o077 and found.st_uid == os.geteuid():
            os.fchmod(descriptor, FILE_MODE)
        if mode == "wb":
            os.ftruncate(descriptor, 0)
    except OSError as error:
        os.close(descriptor)
        raise _access_error(f"File {path}", error) from None
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "ab" if mode == "ab" else "rb" if mode == "rb" else "wb")


def beside(path: Path) -> Path:
    """Path of a hidden file beside this one that no other thread or process writes."""
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")


def write_private(path: str | Path, content: bytes, *, durable: bool = False) -> None:
    """Replace a file atomically by one of mode 0600; the target of a link in its place is not touched.

    Args:
        durable: whether it must be on disk when this returns.

    Raises:
        OSError: it cannot be written.
        StorageError: the temporary file beside it belongs to another user.
    """
    path = Path(path)
    temporary = beside(path)
    try:
        with open_private(temporary, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _remove_group_permissions(folder: Path) -> None:
    found = _inspect(folder, "folder")
    assert found is not None
    wide = stat.S_IMODE(found.st_mode) & 0o077
    if not wide:
        return
    if found.st_uid == os.geteuid():
        folder.chmod(FOLDER_MODE)
        log.warning(
            "%s was open to other users (mode %04o) and is now private (0700).", folder, stat.S_IMODE(found.st_mode)
        )
    elif wide & 0o022:
        raise StorageError(
            f"Folder {folder} belongs to user {found.st_uid} and others may write to it (mode "
            f"{stat.S_IMODE(found.st_mode):04o}); they could have us write or delete other files. "
            "Take that permission away (chmod go-w), or choose another home with --home or HPO_HOME."
        )


def _inspect(path: Path, kind: Literal["file", "folder"]) -> os.stat_result | None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _access_error(f"{kind.capitalize()} {path}", error) from None
    _check_kind_and_owner(path, found, kind)
    return found


def _check_kind_and_owner(path: Path, found: os.stat_result, kind: Literal["file", "folder"]) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise _link_error(f"{kind.capitalize()} {path}")
    if not (stat.S_ISREG if kind == "file" else stat.S_ISDIR)(found.st_mode):
        raise StorageError(
            f"{path} is no {'regular file' if kind == 'file' else 'folder'}. Move it out of the way, or choose another "
            "home with --home or HPO_HOME."
        )
    me = os.geteuid()
    if me != 0 and found.st_uid not in (me, 0):
        raise StorageError(
            f"{kind.capitalize()} {path} belongs to user {found.st_uid}, and this process runs as user {me}: whoever "
            "owns it could have us read, write or delete other files. Choose a home of your own with --home or "
            "HPO_HOME, or run as its owner."
        )


def _link_error(what: str) -> StorageError:
    return StorageError(
        f"{what} is a symbolic link, and below a home folder none is followed: somebody else could have planted it. "
        "Put the real one in its place; for checkpoints elsewhere set checkpoints.folder in the study."
    )


def _access_error(what: str, error: OSError) -> StorageError:
    if error.errno == errno.ELOOP:
        return _link_error(what)
    return StorageError(
        f"{what} cannot be opened or made ({error.strerror}). Free space or make it writable, or choose another home "
        "with --home or HPO_HOME."
    )


class LockFile:
    """A file that is locked as a whole; never waits.

    Args:
        needed_by: who cannot go on without it, for the error: ``retraining of model 'a'``.
        error: what is raised.
        cure: what else than another home helps, for the error.

    Raises:
        StorageError: the file cannot be opened, here, or locked, in :meth:`take`.
    """

    def __init__(
        self, path: Path, needed_by: str, *, error: type[HpoError] = StorageError, cure: str = "make it writable"
    ) -> None:
        self._path = path
        self._needed_by = needed_by
        self._error = error
        self._cure = cure
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise self._unusable("opened", error) from None

    def take(self, how: int) -> bool:
        """True if the lock is ours now; ``how`` is ``fcntl.LOCK_EX`` or ``fcntl.LOCK_SH``. One held before is lost."""
        try:
            fcntl.flock(self.fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._unusable("locked", error) from None
        return True

    def give_back(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def read(self) -> str:
        return os.pread(self.fd, 100_000, 0).decode(errors="replace")

    def write(self, text: str) -> None:
        """Replace the text, for those who ask while the lock is held."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, text.encode(), 0)

    def close(self) -> None:
        os.close(self.fd)

    def _unusable(self, what: str, error: OSError) -> HpoError:
        return self._error(
            f"{self._path} cannot be {what} ({error.strerror or error}): the lock that {self._needed_by} needs. Choose "
            f"another home with --home or HPO_HOME, or {self._cure}."
        )
