"""Paths as the URLs of SQLite files and back, and the names that no URL or journal can hold."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote

from hpo_core.model.errors import StorageError

_SQLITE = re.compile(r"(?P<scheme>sqlite(?:\+\w+)?:///)(?P<path>[^?]*)(?P<query>\?.*)?", re.DOTALL)
_NO_URL = re.compile(r"[?\x00-\x1f\x7f\ud800-\udfff]")
"""SQLAlchemy begins arguments at a ``?``, MLflow drops line breaks and tabs, and no library encodes the last."""
_NO_TEXT = re.compile(r"[\ud800-\udfff]")
_NO_FILES = frozenset({"", ":memory:"})


def checked_text(path: str | Path, what: str, cure: str) -> str:
    """A path as text that can be encoded.

    Args:
        what: the path in words, at the beginning of the error.
        cure: what helps, as a sentence.

    Raises:
        StorageError: a name in it is no UTF-8.
    """
    if _NO_TEXT.search(str(path)):
        raise StorageError(f"{what} {str(path)!r} has a name that is no UTF-8, which no journal can hold. {cure}")
    return str(path)


def sqlite_url(file: Path, what: str = "Database", cure: str = "Rename it, or choose another.") -> str:
    """The URL of a SQLite file. Arguments as of :func:`checked_text`.

    Raises:
        StorageError: no URL can hold its name.

    >>> sqlite_url(Path("/srv/a#b/100%.db"))
    'sqlite:////srv/a#b/100%.db'
    """
    if found := _NO_URL.search(checked_text(file, what, cure)):
        raise StorageError(
            f"{what} {str(file)!r} has a {found[0]!r} in its path, which no database URL can hold. {cure}"
        )
    return f"sqlite:///{file}"


def sqlite_file(url: str) -> Path | None:
    """The file that SQLAlchemy opens for a URL; None for a database that is none of SQLite, or lies in memory.

    >>> sqlite_file("sqlite:////srv/a%41#b.db?timeout=9"), sqlite_file("postgresql://host/db"), sqlite_file("sqlite://")
    (PosixPath('/srv/a%41#b.db'), None, None)
    """
    found = _SQLITE.fullmatch(url)
    if found is None:
        return None
    path = found["path"]
    if _is_uri(found):  # SQLite's own: file:PATH, in which %41 is an A
        path = unquote(path.removeprefix("file:").removeprefix("//"))
        if "mode=memory" in found["query"]:
            return None
    return None if path in _NO_FILES else Path(path).absolute()


def settled_url(url: str, folder: Path) -> str:
    """The URL of a SQLite file with its path made absolute; any other as it is.

    Args:
        folder: that a relative path is relative to.

    Raises:
        StorageError: no URL can hold the file's name.
    """
    found = _SQLITE.fullmatch(url)
    if found is None or sqlite_file(url) is None:
        return url
    scheme, query = found["scheme"], found["query"] or ""
    is_uri = _is_uri(found)
    path = Path(unquote(found["path"].removeprefix("file:")) if is_uri else found["path"])
    if path.is_absolute():
        return url
    path = (folder / path).resolve()
    return f"{scheme}{f'file:{quote(str(path))}' if is_uri else sqlite_url(path).removeprefix('sqlite:///')}{query}"


def _is_uri(found: re.Match[str]) -> bool:
    return found["path"].startswith("file:") and "uri" in parse_qs((found["query"] or "").removeprefix("?"))


def working_folder() -> Path:
    """The folder that this process works in.

    Raises:
        StorageError: it was removed, or its name is no UTF-8.
    """
    try:
        folder = Path.cwd()
    except OSError as error:
        raise StorageError(
            f"The working folder is not there any more ({error.strerror}). Change to one that is."
        ) from None
    return Path(checked_text(folder, "The working folder", "Rename it, or work in another."))


_NO_PATHS = frozenset({"", "databricks", "databricks-uc", "uc"})


def settled_database(value: str) -> str:
    """A setting's value with the path of a SQLite file (or of MLflow's folder) made absolute; any other as it is.

    >>> settled_database("sqlite:////srv/journal.db"), settled_database("http://mlflow:5000")
    ('sqlite:////srv/journal.db', 'http://mlflow:5000')
    """
    if value in _NO_PATHS or Path(value).is_absolute():
        return value
    here = working_folder().resolve()
    return settled_url(value, here) if ":" in value else str(here / value)
