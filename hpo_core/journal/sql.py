"""The journal in a SQL database: SQLite by default, PostgreSQL or any other SQLAlchemy URL.

SQLite runs in WAL mode with ``synchronous=FULL``: an append that returned survives ``kill -9`` and power
loss, readers never block the writer, and one transaction costs one fsync.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import sqlalchemy as sa

from hpo_core.journal.codec import decode_entry, encode_entry
from hpo_core.journal.protocol import UNKNOWN_CURE, Owner, StudyInfo, started, unknown_study
from hpo_core.journal.sql_measurements import SqlMeasurements
from hpo_core.model.errors import (
    FencedError,
    JournalError,
    JournalUnavailableError,
    StorageError,
    StudyBusyError,
    StudyExistsError,
)
from hpo_core.model.events import Entry
from hpo_core.model.file_urls import sqlite_file, sqlite_url
from hpo_core.security.masking import without_secret_arguments
from hpo_core.security.private_files import private_database


def is_read_only(file: Path) -> bool:
    return file.exists() and not (os.access(file, os.W_OK) and os.access(file.parent, os.W_OK))


def reading_uri(file: Path) -> str:
    """The URI that reads a SQLite file in a folder that cannot be written to: an archive, somebody else's home.

    In WAL mode even a reader needs two more files beside the database. Where a writer is at work, or was killed, they
    are there and SQLite reads them as they are. Else the database is read as one that nobody changes.
    """
    wal = file.with_name(file.name + "-wal")
    is_whole = not wal.exists() or not wal.stat().st_size
    return f"file:{quote(str(file.absolute()))}?mode=ro{'&immutable=1' if is_whole else ''}"


def _connected(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, timeout=30, check_same_thread=False, isolation_level=None)


SCHEMA = 1
LEASE_SECONDS = 60.0
"""An owner on another machine counts as alive so long after its last sign of life, by the database's clock.

SQLite has none: there it is the clock of the machine that asks, and the file belongs to one machine.
"""

_metadata = sa.MetaData()
_meta = sa.Table(
    "hpo_meta",
    _metadata,
    sa.Column("key", sa.String(40), primary_key=True),
    sa.Column("value", sa.String(200), nullable=False),
)
_studies = sa.Table(
    "hpo_studies",
    _metadata,
    sa.Column("name", sa.String(100), primary_key=True),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("next_seq", sa.BigInteger, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("owner_host", sa.String(255)),
    sa.Column("owner_pid", sa.BigInteger),
    sa.Column("owner_born", sa.Double),
    sa.Column("renewed", sa.Double, nullable=False),
)
_entries = sa.Table(
    "hpo_entries",
    _metadata,
    sa.Column("study", sa.String(100), primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
)
_advance = (
    _studies.update()
    .where(
        _studies.c.name == sa.bindparam("study"),
        _studies.c.next_seq == sa.bindparam("expected"),
        _studies.c.epoch == sa.bindparam("mine"),
    )
    .values(next_seq=sa.bindparam("following"))
)
_add = _entries.insert()
"""Made once: SQLAlchemy keeps what it computes for a statement with the statement."""
_READ_CHUNK = 1000
BUSY_SECONDS = 30.0
"""Seconds that SQLite itself waits for a lock."""
_PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""libpq waits without limit for a host that does not answer; these end it within half a minute. The URL overrides."""
_PASSING_SQLITE = ("locked", "busy", "i/o error", "is full", "unable to open", "locking protocol")
_PASSING_CLASSES = frozenset({"08", "40", "53", "55", "57", "58"})
"""SQLSTATE classes: connection, rollback, resources (53100: disk full), locks, shutdown and start, I/O errors; and
25006, a standby that was not promoted yet."""


def current_owner() -> Owner:
    return Owner(socket.gethostname(), os.getpid(), started())


def open_journal(url: str | Path, *, reading: bool = False) -> SqlJournal:
    text = str(url)
    return SqlJournal(text if "://" in text else sqlite_url(Path(text), "Journal"), reading=reading)


def _masked(url: str) -> str:
    # Cut off everything before an @: what is no URL may hold a password all the same.
    return without_secret_arguments(f"...@{url.rpartition('@')[2]}" if "@" in url else url)


class SqlJournal:
    """Entries of many studies in one database.

    Args:
        url: SQLAlchemy URL, for example ``sqlite:///journal.db`` or ``postgresql+psycopg://host/db``.
        reading: nothing will be written: a SQLite file may lie in a folder that is read-only.

    Raises:
        JournalError: the database cannot be opened or created, or has a newer schema.
    """

    def __init__(self, url: str, *, reading: bool = False) -> None:
        try:
            self._url = sa.make_url(url)
        except sa.exc.ArgumentError:
            raise JournalError(
                f"Journal URL {_masked(url)!r} is no SQLAlchemy URL. Write sqlite:///PATH or postgresql+psycopg://HOST/DB."
            ) from None
        self._sqlite = self._url.get_backend_name() == "sqlite"
        file = sqlite_file(url)
        self._read_only = reading and file is not None and is_read_only(file)
        if file is not None and not self._read_only:
            try:
                file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                raise JournalError(
                    f"Journal folder {file.parent} cannot be created ({error.strerror}). "
                    "Choose a writable one with --home or HPO_HOME."
                ) from None
            with contextlib.suppress(OSError, StorageError):  # what is wrong with it is said when it is opened
                private_database(file)
        self._busy_seconds = BUSY_SECONDS
        arguments: dict[str, Any] = {} if self._sqlite else {"pool_pre_ping": True}
        if self._url.drivername in ("postgresql", "postgresql+psycopg", "postgresql+psycopg2"):
            given = {name: value for name, value in _PATIENCE.items() if name not in self._url.query}
            arguments["connect_args"] = given
        with self._translated("opened"):
            if self._read_only:
                assert file is not None
                uri = reading_uri(file)
                self._engine = sa.create_engine("sqlite://", creator=lambda: _connected(uri), poolclass=sa.QueuePool)
            else:
                self._engine = sa.create_engine(self._url, **arguments)
            if self._sqlite and not self._read_only:
                sa.event.listen(self._engine, "connect", self._prepare_sqlite)
                sa.event.listen(self._engine, "begin", _begin_immediate)
            self._reader = self._engine.execution_options(isolation_level="AUTOCOMMIT")
            self.measurements = SqlMeasurements(self._engine, self._reader, self._translated)
            """Needs of jobs, see :mod:`hpo_core.journal.protocol`."""
            self._set_up()

    def _set_up(self) -> None:
        with self._reader.connect() as connection:
            ready = sa.inspect(connection).has_table(_meta.name)
        if not ready and self._read_only:
            raise JournalError(
                f"Journal {self} holds no table of studies and cannot be written to. Check the path, or restore it "
                "from a backup."
            )
        if not ready:
            try:
                with self._engine.begin() as connection:
                    _metadata.create_all(connection)
                    if connection.execute(sa.select(_meta.c.value)).first() is None:
                        connection.execute(_meta.insert().values(key="schema", value=str(SCHEMA)))
            except (sa.exc.IntegrityError, sa.exc.ProgrammingError):
                pass  # another process was quicker; what it made is read below
        with self._reader.connect() as connection:
            found = connection.execute(sa.select(_meta.c.value).where(_meta.c.key == "schema")).scalar()
        if not str(found).isdecimal() or int(str(found)) > SCHEMA:
            raise JournalError(
                f"Journal {self} has schema {found!r}; this version knows {SCHEMA}. "
                "Upgrade this package; if it wrote the journal itself, restore that from a backup."
            )

    def __str__(self) -> str:
        return without_secret_arguments(self._url.render_as_string(hide_password=True))

    @property
    def url(self) -> str:
        return self._url.render_as_string(hide_password=False)

    def database(self) -> tuple[sa.Engine, sa.Engine, Callable[[str], AbstractContextManager[None]]]:
        """For tables beside the journal's: its engine, the same without transactions, and what translates errors.

        The last one gives errors of the database as those of the journal; its argument is the verb of the message.
        """
        return self._engine, self._reader, self._translated

    def close(self) -> None:
        self._engine.dispose()

    def wait_in_python(self) -> None:
        """Have a locked SQLite file reported after a second: its own waiting lets no signal through.

        For whoever tries again (:mod:`hpo_core.journal.retrying`).
        """
        self._busy_seconds = 1.0
        self._engine.dispose()

    def _prepare_sqlite(self, connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions begin where SQLAlchemy says, see _begin_immediate
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={int(self._busy_seconds * 1000)}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.close()

    @contextmanager
    def _translated(self, verb: str) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            reason = str(error.orig) if error.orig is not None else str(error)
            kind = JournalError
            if _may_pass(error, self._sqlite):
                kind = JournalUnavailableError
                self._engine.dispose()  # connections of the time before are worth nothing
            raise kind(f"Journal {self} could not be {verb}: {reason.strip()}. {_cure(reason, kind)}") from error
        except sa.exc.TimeoutError as error:
            raise JournalUnavailableError(f"Journal {self} could not be {verb}: {error}.") from error
        except sa.exc.SQLAlchemyError as error:
            raise JournalError(f"Journal {self} could not be {verb}: {error}.") from error
        except ModuleNotFoundError as error:
            raise JournalError(
                f"Journal {self} needs the driver {error.name}, which is not installed. `pip install "
                "'hpo-core[postgresql]'` brings that of postgresql+psycopg://..., as the URL should begin."
            ) from error

    def create(self, study: str, first: Entry) -> None:
        self._insert(study, first, [first])

    def _insert(self, study: str, first: Entry, entries: Iterable[Entry]) -> None:
        # Write a new study in one transaction; its entries are read before it begins.
        rows, last = [], first
        for last in entries:
            rows.append({"study": study, "seq": last.seq, "body": encode_entry(last)})
        try:
            with self._translated("written"), self._engine.begin() as connection:
                connection.execute(
                    _studies.insert().values(
                        name=study, created=first.time, next_seq=last.seq + 1, epoch=last.epoch, renewed=first.time
                    )
                )
                connection.execute(_add, rows)
        except JournalError as error:
            if isinstance(error.__cause__, sa.exc.IntegrityError):
                raise StudyExistsError(
                    f"Study {study!r} exists already in {self}. `hpo resume {study}` goes on with it, "
                    f"`hpo extend {study} --configs N` asks for more; or choose another name."
                ) from None
            raise

    def append(self, study: str, entry: Entry) -> None:
        body = encode_entry(entry)
        with self._translated("written"), self._engine.begin() as connection:
            done = connection.execute(
                _advance,
                {"study": study, "expected": entry.seq, "mine": entry.epoch, "following": entry.seq + 1},
            )
            if done.rowcount == 1:
                connection.execute(_add, {"study": study, "seq": entry.seq, "body": body})
                return
        info = self.info(study)
        raise FencedError(
            f"Study {study!r}: entry {entry.seq} of epoch {entry.epoch} was refused; the journal is at entry "
            f"{info.entries}, epoch {info.epoch}. Another controller took the study over; this one stops "
            "and nothing was written twice."
        )

    def restore(self, study: str, entries: Iterable[Entry]) -> None:
        """Write a whole study that was recorded elsewhere, or nothing of it; nobody drives it.

        Raises:
            StudyExistsError: the name is taken.
        """
        following = iter(entries)
        first = next(following)
        self._insert(study, first, itertools.chain([first], following))

    def entries(self, study: str, start: int = 0, stop: int | None = None) -> Iterator[Entry]:
        info = self.info(study)
        end = info.entries if stop is None else min(stop, info.entries)
        return self._read(study, start, end)

    def _read(self, study: str, start: int, end: int) -> Iterator[Entry]:
        while start < end:
            upto = min(end, start + _READ_CHUNK)
            query = (
                sa.select(_entries.c.seq, _entries.c.body)
                .where(_entries.c.study == study, _entries.c.seq >= start, _entries.c.seq < upto)
                .order_by(_entries.c.seq)
            )
            with self._translated("read"), self._reader.connect() as connection:
                rows = connection.execute(query).all()
            for expected, (seq, body) in enumerate(rows, start):
                if seq != expected:
                    raise self._gap(study, expected)
                yield self._decoded(study, seq, body)
            if len(rows) != upto - start:
                raise self._gap(study, start + len(rows))
            start = upto

    def _decoded(self, study: str, seq: int, body: Any) -> Entry:
        try:
            entry = decode_entry(body)
        except JournalError as error:
            raise JournalError(f"Study {study!r} in {self}, entry {seq}: {error}") from error
        if entry.seq != seq:
            raise JournalError(
                f"Study {study!r} in {self}: the row of entry {seq} holds entry {entry.seq}. Restore the journal from "
                f"a backup; `hpo show {study} --at {seq - 1}` still reads what comes before."
            )
        return entry

    def _gap(self, study: str, seq: int) -> JournalError:
        return JournalError(
            f"Study {study!r} in {self}: entry {seq} is missing. Restore the journal from a backup; "
            f"`hpo show {study} --at {seq - 1}` still reads what comes before."
        )

    def info(self, study: str) -> StudyInfo:
        with self._translated("read"), self._reader.connect() as connection:
            row = connection.execute(self._infos().where(_studies.c.name == study)).first()
        if row is None:
            known = [info.name for info in self.studies()]
            raise unknown_study(study, known, str(self), UNKNOWN_CURE)
        return self._info(row)

    def studies(self) -> list[StudyInfo]:
        with self._translated("read"), self._reader.connect() as connection:
            rows = connection.execute(self._infos().order_by(_studies.c.name)).all()
        return [self._info(row) for row in rows]

    def _now(self) -> sa.ColumnElement[float]:
        if self._url.get_backend_name() != "postgresql":
            return sa.literal(time.time(), sa.Double)
        return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)

    def _infos(self) -> sa.Select[Any]:
        return sa.select(_studies, (self._now() - _studies.c.renewed).label("silent"))

    def _info(self, row: Any) -> StudyInfo:
        owner = None if row.owner_host is None else Owner(row.owner_host, row.owner_pid, row.owner_born)
        info = StudyInfo(row.name, row.created, row.next_seq, epoch=row.epoch, owner=owner, silent=row.silent)
        try:  # SQLite takes a value of any type in any column
            return msgspec.convert(msgspec.to_builtins(info), StudyInfo, strict=False)
        except (msgspec.ValidationError, TypeError) as error:
            raise JournalError(
                f"Study {row.name!r} in {self}: its row in the table of studies is damaged ({error}). Restore the "
                "journal from a backup."
            ) from error

    def claim(self, study: str, owner: Owner, *, force: bool = False) -> int:
        info = self.info(study)
        if not force and (driver := driver_words(info, owner)):
            raise StudyBusyError(
                f"Study {study!r} {driver}. Wait for it or end it; if you know that it is gone, take over with --force "
                "(in Python force=True): it can then write nothing more."
            )
        with self._translated("written"), self._engine.begin() as connection:
            done = connection.execute(
                _studies.update()
                .where(_studies.c.name == study, _studies.c.epoch == info.epoch)
                .values(
                    epoch=info.epoch + 1,
                    owner_host=owner.host,
                    owner_pid=owner.pid,
                    owner_born=owner.born,
                    renewed=self._now(),
                )
            )
        if done.rowcount != 1:
            raise StudyBusyError(f"Study {study!r} was claimed by another controller at this moment; try again.")
        return info.epoch + 1

    def renew(self, study: str, epoch: int) -> None:
        with self._translated("written"), self._engine.begin() as connection:
            done = connection.execute(
                _studies.update().where(_studies.c.name == study, _studies.c.epoch == epoch).values(renewed=self._now())
            )
        if done.rowcount != 1:
            raise FencedError(
                f"Study {study!r} was taken over by another controller (mine was epoch {epoch}). This one stops; "
                "what it was training is lost, nothing was written twice."
            )

    def release(self, study: str, epoch: int) -> None:
        with self._translated("written"), self._engine.begin() as connection:
            connection.execute(
                _studies.update()
                .where(_studies.c.name == study, _studies.c.epoch == epoch)
                .values(owner_host=None, owner_pid=None, owner_born=None)
            )


def driver_words(info: StudyInfo, me: Owner) -> str:
    owner = info.owner
    if owner is None or owner == me or not _alive(owner, info.silent, me):
        return ""
    return (
        f"is being driven by process {owner.pid} on {owner.host} (last sign of life {max(0.0, info.silent):.0f} s ago)"
    )


def is_alive(info: StudyInfo) -> bool:
    return info.owner is not None and _alive(info.owner, info.silent, current_owner())


def _alive(owner: Owner, silent: float, me: Owner) -> bool:
    return owner.runs() if owner.host == me.host else silent < LEASE_SECONDS


def _begin_immediate(connection: sa.Connection) -> None:
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _may_pass(error: sa.exc.DBAPIError, sqlite: bool) -> bool:
    if error.connection_invalidated:
        return True
    if sqlite:
        low = str(error.orig).lower()
        return isinstance(error, sa.exc.OperationalError) and any(sign in low for sign in _PASSING_SQLITE)
    state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    if state is None:  # it never got as far as to the server
        return isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError)
    return state[:2] in _PASSING_CLASSES or state == "25006"


def _cure(reason: str, kind: type[JournalError]) -> str:
    low = reason.lower()
    if "full" in low or "no space" in low:
        return "Free some space, then `hpo resume`: everything recorded so far is intact."
    if "readonly" in low or "read-only" in low or "unable to open" in low or "permission" in low:
        return "Make its folder writable, or choose another with --home or HPO_HOME."
    if "malformed" in low or "not a database" in low or "decode" in low:
        return "The file is damaged: restore it from a backup."
    if "locked" in low:
        return "Another process holds it; end that process or try again."
    if "i/o error" in low:
        return "Look at the disk; what was recorded before is intact, and `hpo resume` goes on with it."
    if kind is not JournalUnavailableError:
        return (
            "See that the URL names a journal and the user may use it; where it did before, restore it from a backup."
        )
    return "Check that the server runs and the URL is right; then `hpo resume`."
