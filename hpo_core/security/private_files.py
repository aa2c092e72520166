"""Folders and files that only their user may read: modes 0700 and 0600, no links, no foreign owners.

A link that somebody planted where we write would make us write, empty or delete what it points to. So nothing below a
home folder may be a link, and nothing may belong to somebody else; root's own files are accepted, and root accepts
every owner (a container often runs as root on a volume of another user).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from pathlib import Path
from typing import IO, Literal

from hpo_core.model.errors import StorageError

FOLDER_MODE = 0o700
FILE_MODE = 0o600

log = logging.getLogger("hpo.home")


def private_folder(path: str | Path, *, below: str | Path | None = None) -> Path:
    """Make a folder with mode 0700, or check one that is there and take others' permissions from it.

    Args:
        below: folders from here (included) down to ``path`` are checked and made likewise; it must be a parent of
            ``path``. Default: ``path`` alone, and what is missing above it is made with mode 0700, too.

    Raises:
        StorageError: it is a link or no folder, belongs to somebody else, or cannot be made.
    """
    path = Path(path)
    top = path if below is None else Path(below)
    chain = [top]
    for part in path.relative_to(top).parts:
        chain.append(chain[-1] / part)
    try:
        if not top.parent.exists():
            private_folder(top.parent)
        for folder in chain:  # one by one: below a link nothing may be made
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=FOLDER_MODE)
            _tighten(folder)
    except OSError as error:
        raise _cannot(f"Folder {path}", error) from None
    return path


def check_folder(path: str | Path, *, below: str | Path | None = None) -> None:
    """Refuse a folder of which a part, from ``below`` (included) on, is a link or belongs to somebody else.

    Nothing is changed; what is not there is no fault.

    Raises:
        StorageError: see above.
    """
    path = Path(path)
    place = path if below is None else Path(below)
    _look(place)
    for part in path.relative_to(place).parts:
        place = place / part
        _look(place)


def check_file(path: str | Path) -> None:
    """Refuse a file that is a link, no regular file, or somebody else's; what is not there is no fault.

    Raises:
        StorageError: see above.
    """
    try:
        found = Path(path).lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot(f"File {path}", error) from None
    _refuse(Path(path), found, "file")


def private_database(path: str | Path) -> None:
    """Make an empty SQLite file of mode 0600 where there is none; take others' permissions from one that is ours.

    One that is there is never opened here: to close it again would free the locks that SQLite holds on it elsewhere in
    this process.
    """
    path = Path(path)
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            open_private(path, "xb").close()
    for side in ("", "-wal", "-shm"):  # SQLite gives the other two the mode of the first
        _narrow(path.with_name(path.name + side))


def _narrow(path: Path) -> None:
    with contextlib.suppress(OSError):
        found = path.stat()
        if stat.S_IMODE(found.st_mode) & 0o077 and found.st_uid == os.geteuid():
            path.chmod(FILE_MODE)


def open_private(path: str | Path, mode: Literal["rb", "wb", "ab", "xb"]) -> IO[bytes]:
    """Open a file of ours, made with mode 0600 where it is missing (except to read).

    Raises:
        FileNotFoundError: it is to be read and is not there.
        FileExistsError: it is to be new (``xb``) and is there.
        StorageError: it is a link or no regular file, belongs to somebody else, or cannot be opened.
    """
    flags = {
        "rb": os.O_RDONLY,
        "wb": os.O_WRONLY | os.O_CREAT,  # emptied only once it is known to be ours
        "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
        "xb": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    }[mode]
    try:
        # O_NONBLOCK: to open a pipe that somebody planted must not wait for its other end.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        raise _cannot(f"File {path}", error) from None
    try:
        found = os.fstat(descriptor)
        _refuse(Path(path), found, "file")
        os.set_blocking(descriptor, True)
        if stat.S_IMODE(found.st_mode) & 0o077 and found.st_uid == os.geteuid():
            os.fchmod(descriptor, FILE_MODE)
        if mode == "wb":
            os.ftruncate(descriptor, 0)
    except OSError as error:
        os.close(descriptor)
        raise _cannot(f"File {path}", error) from None
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "ab" if mode == "ab" else "rb" if mode == "rb" else "wb")


def write_private(path: str | Path, content: bytes, *, durable: bool = False) -> None:
    """Replace a file by one of mode 0600 in one step; what a link at its place points to is not touched.

    Args:
        durable: whether it must be on disk when this returns.

    Raises:
        OSError: it cannot be written.
        StorageError: the file beside it that is written first is somebody else's.
    """
    path = Path(path)
    side = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open_private(side, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        side.replace(path)
    except BaseException:
        side.unlink(missing_ok=True)
        raise


def _tighten(folder: Path) -> None:
    found = _look(folder)
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


def _look(folder: Path) -> os.stat_result | None:
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _cannot(f"Folder {folder}", error) from None
    _refuse(folder, found, "folder")
    return found


def _refuse(path: Path, found: os.stat_result, kind: Literal["file", "folder"]) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise _link(f"{kind.capitalize()} {path}")
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


def _link(what: str) -> StorageError:
    return StorageError(
        f"{what} is a symbolic link, and below a home folder none is followed: somebody else could have planted it. "
        "Put the real one in its place; for checkpoints elsewhere set checkpoints.folder in the study."
    )


def _cannot(what: str, error: OSError) -> StorageError:
    if error.errno == errno.ELOOP:
        return _link(what)
    return StorageError(
        f"{what} cannot be opened or made ({error.strerror}). Free space or make it writable, or choose another home "
        "with --home or HPO_HOME."
    )
