"""Rows of pools, one for each study: read together, and written where nobody changed them meanwhile.

What is written is computed while no transaction is open: a controller that is stopped there holds up nobody.

They lie in a table beside the journal's, made at first use. A damaged row is no member: a study goes on without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from hpo_core.journal.protocol import Journal, StudyInfo
from hpo_core.journal.sql import SqlJournal
from hpo_core.model.errors import JournalError, JournalUnavailableError, StudyNotFoundError
from hpo_core.pool.division import Member, Wish

MOST_TRIES = 8
"""Readings of rows that others changed before they were written; then it is tried at the next look."""
WAIT_SECONDS = 1.0
"""Longest wait for others who write to the same database: the study's loop stands still meanwhile."""


class PoolRow(msgspec.Struct, frozen=True):
    """One study in one pool."""

    pool: str
    study: str
    member: Member | None
    """As its controller says; None: it has left, or the row is damaged."""
    wish: Wish | None = None
    """As a person said while it ran."""


Decide = Callable[[Sequence[PoolRow]], Iterable[PoolRow]]
"""Decides which rows are written, from all rows of the pool as they are."""

_metadata = sa.MetaData()
_table = sa.Table(
    "hpo_members",
    _metadata,
    sa.Column("pool", sa.String(300), primary_key=True),
    sa.Column("study", sa.String(100), primary_key=True),
    sa.Column("member", sa.Text, nullable=False),
    sa.Column("wish", sa.Text, nullable=False),
)
_all_rows = sa.select(_table).order_by(_table.c.pool, _table.c.study)
_T = TypeVar("_T", Member, Wish)


class Pools:
    """Rows of pools in a table of a journal's database; each change is a transaction of its own.

    All raise JournalError where the database does not answer or cannot be written.

    Args:
        journal: gives the database, and its errors as those of the journal.
    """

    def __init__(self, journal: SqlJournal) -> None:
        self._engine, self._reader, self._translated = journal.database()
        self._is_there = False

    def all(self) -> list[PoolRow]:
        return [_row(raw) for raw in self._read(_all_rows)]

    def _read(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        with self._translated("read"):
            if not self._has_table():
                return []
            with self._reader.connect() as connection:
                return connection.execute(query).all()

    def change(self, pool: str, study: str, decide: Decide) -> None:
        """Write the rows that ``decide`` gives; it is asked again where others changed the pool meanwhile.

        Raises:
            JournalUnavailableError: others changed it each time.
        """
        for _ in range(MOST_TRIES):
            found = self._read(_of_pool(pool, study))
            rows = {row.study: row for row in map(_row, found)}
            writes = [(row, rows.get(row.study)) for row in decide(list(rows.values()))]
            writes = [(row, before) for row, before in writes if row != before]
            if not writes or self._written(writes, found, pool, study):
                return
        raise JournalUnavailableError(
            f"Pool {pool} was changed by other studies {MOST_TRIES} times while study {study!r} looked at it. It looks "
            "again."
        )

    def leave(self, pool: str, study: str, owner: str) -> None:
        """Give everything back, unless another controller has the study's row; what a person said of it stays."""
        self.change(
            pool,
            study,
            lambda rows: [
                msgspec.structs.replace(row, member=None)
                for row in rows
                if row.study == study and row.member is not None and row.member.owner == owner
            ],
        )

    def say(self, pool: str, study: str, wish: Wish) -> None:
        """Keep what a person says of a study's share, beside what was said before."""

        def decide(rows: Sequence[PoolRow]) -> list[PoolRow]:
            row = next((row for row in rows if row.study == study), PoolRow(pool, study, None))
            said = msgspec.structs.asdict(row.wish or Wish()).items()
            merged = {name: before if getattr(wish, name) is None else getattr(wish, name) for name, before in said}
            return [msgspec.structs.replace(row, wish=Wish(**merged))]

        self.change(pool, study, decide)

    def _written(
        self, writes: Sequence[tuple[PoolRow, PoolRow | None]], found: Sequence[sa.Row[Any]], pool: str, study: str
    ) -> bool:
        # Write in one transaction that no other writer's overlaps; False: the rows have changed.
        with self._translated("written"):
            self._make_table()
            with self._engine.begin() as connection:
                if connection.dialect.name == "postgresql":
                    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(1000 * WAIT_SECONDS)}")
                    connection.exec_driver_sql(f"LOCK TABLE {_table.name} IN SHARE ROW EXCLUSIVE MODE")
                if connection.execute(_of_pool(pool, study)).all() != found:
                    return False
                for row, before in writes:
                    here = (_table.c.pool == row.pool) & (_table.c.study == row.study)
                    write = _table.insert() if before is None else _table.update().where(here)
                    texts = {"member": _text(row.member), "wish": _text(row.wish)}
                    connection.execute(write.values({"pool": row.pool, "study": row.study} | texts))
        return True

    def _make_table(self) -> None:
        if not self._has_table():
            try:
                with self._engine.begin() as connection:
                    _metadata.create_all(connection)
            except (sa.exc.IntegrityError, sa.exc.ProgrammingError, sa.exc.OperationalError):
                if not self._has_table():
                    raise  # no other process was quicker: it may not be made

    def _has_table(self) -> bool:
        if not self._is_there:
            with self._reader.connect() as connection:
                self._is_there = sa.inspect(connection).has_table(_table.name)
        return self._is_there


def _of_pool(pool: str, study: str) -> sa.Select[Any]:
    here = (_table.c.pool == pool) & ((_table.c.member != "") | (_table.c.study == study))
    return _all_rows.where(here)


def _row(row: Any) -> PoolRow:
    pool, study, member, wish = row
    found = _decoded(member, Member)
    is_its_own = found is not None and found.study == study
    return PoolRow(str(pool), str(study), found if is_its_own else None, _decoded(wish, Wish))


def _text(value: Member | Wish | None) -> str:
    return "" if value is None else msgspec.json.encode(value).decode()


def _decoded(text: Any, kind: type[_T]) -> _T | None:
    # None where there is nothing, or the row is damaged: SQLite takes a value of any type in any column.
    try:
        return msgspec.json.decode(text, type=kind) if text else None
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError):
        return None


def pools_of(journal: Journal) -> Pools:
    """The pools in a journal's database.

    Raises:
        JournalError: the journal lies in memory, where no other study sees it.
    """
    while (beneath := getattr(journal, "wrapped", None)) is not None:
        journal = beneath
    if not isinstance(journal, SqlJournal):
        raise JournalError("A journal in memory has no pools; studies that share slots have theirs in one database.")
    return Pools(journal)


def live_rows(journal: Journal, is_alive: Callable[[StudyInfo], bool]) -> list[PoolRow]:
    """The members of all pools whose controller lives, as far as this machine can know."""
    found = []
    for row in pools_of(journal).all():
        if row.member is not None:
            with contextlib.suppress(StudyNotFoundError):
                if is_alive(journal.info(row.study)):
                    found.append(row)
    return found
