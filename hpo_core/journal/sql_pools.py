"""Pools of slots in the journal's database: one table, made at first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from hpo_core.journal.pools import WAIT_SECONDS, Change, PoolRow, merged
from hpo_core.model.devices.pool_member import Member, Wish

_metadata = sa.MetaData()
_table = sa.Table(
    "hpo_pools",
    _metadata,
    sa.Column("pool", sa.String(300), primary_key=True),
    sa.Column("study", sa.String(100), primary_key=True),
    sa.Column("present", sa.SmallInteger, nullable=False),
    sa.Column("member", sa.Text, nullable=False),
    sa.Column("wish", sa.Text, nullable=False),
)
_columns = (_table.c.pool, _table.c.study, _table.c.present, _table.c.member, _table.c.wish)
_T = TypeVar("_T", Member, Wish)


class SqlPools:
    """Pools in a table of the journal's database.

    Args:
        engine: of the journal; each change is a transaction of its own.
        reader: the same, without transactions.
        translated: gives errors of the database as those of the journal; its argument is the verb of the message.
    """

    def __init__(
        self, engine: sa.Engine, reader: sa.Engine, translated: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        self._engine = engine
        self._reader = reader
        self._translated = translated
        self._is_there = False

    def look(self, pool: str, study: str) -> list[PoolRow]:
        with self._translated("read"):
            if not self._has_table():
                return []
            with self._reader.connect() as connection:
                return _rows(connection, pool, study)

    def change(self, pool: str, study: str, decide: Callable[[Sequence[PoolRow]], Change | None]) -> None:
        with self._translated("written"):
            self._make_table()
            with self._writing() as connection:
                rows = _rows(connection, pool, study)
                change = decide(rows)
                if change is None:
                    return
                there = {row.study: row.member for row in rows}  # not compared as text: another version's has more
                for gone in change.gone:
                    if there.get(gone.study) == gone:
                        connection.execute(_table.update().where(_is(pool, gone.study)).values(present=0))
                values = {"present": 1, "member": _text(change.mine)}
                if any(row.study == study for row in rows):
                    connection.execute(_table.update().where(_is(pool, study)).values(values))
                else:
                    connection.execute(_table.insert().values(values | {"pool": pool, "study": study, "wish": ""}))

    def leave(self, pool: str, study: str, owner: str) -> None:
        def left(rows: Sequence[PoolRow]) -> bool:
            return any(row.study == study and row.member is not None and row.member.owner == owner for row in rows)

        with self._translated("written"):
            if not self._has_table():
                return
            with self._writing() as connection:
                if left(_rows(connection, pool, study)):
                    connection.execute(_table.update().where(_is(pool, study)).values(present=0))

    def say(self, pool: str, study: str, wish: Wish) -> None:
        with self._translated("written"):
            self._make_table()
            with self._writing() as connection:
                mine = [row for row in _rows(connection, pool, study) if row.study == study]
                if mine:
                    text = _text(merged(mine[0].wish, wish))
                    connection.execute(_table.update().where(_is(pool, study)).values(wish=text))
                else:
                    new = {"pool": pool, "study": study, "present": 0, "member": "", "wish": _text(wish)}
                    connection.execute(_table.insert().values(new))

    def all(self) -> list[PoolRow]:
        with self._translated("read"):
            if not self._has_table():
                return []
            with self._reader.connect() as connection:
                found = connection.execute(sa.select(*_columns).order_by(_table.c.pool, _table.c.study)).all()
                return [_row(row) for row in found]

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """A transaction that no other writer's overlaps; in SQLite it waits as long as the journal's own."""
        with self._engine.connect() as connection, connection.begin():
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(1000 * WAIT_SECONDS)}")
                connection.exec_driver_sql(f"LOCK TABLE {_table.name} IN SHARE ROW EXCLUSIVE MODE")
            yield connection

    def _has_table(self) -> bool:
        if not self._is_there:
            with self._reader.connect() as connection:
                self._is_there = sa.inspect(connection).has_table(_table.name)
        return self._is_there

    def _make_table(self) -> None:
        if self._has_table():
            return
        try:
            with self._engine.begin() as connection:
                _metadata.create_all(connection)
        except (sa.exc.IntegrityError, sa.exc.ProgrammingError, sa.exc.OperationalError):
            if not self._has_table():
                raise  # no other process was quicker: it may not be made


def _is(pool: str, study: str) -> sa.ColumnElement[bool]:
    return (_table.c.pool == pool) & (_table.c.study == study)


def _rows(connection: sa.Connection, pool: str, study: str) -> list[PoolRow]:
    shown = (_table.c.pool == pool) & ((_table.c.present == 1) | (_table.c.study == study))
    return [_row(row) for row in connection.execute(sa.select(*_columns).where(shown).order_by(_table.c.study))]


def _row(row: Any) -> PoolRow:
    pool, study, present, member, wish = row
    found = _decoded(member, Member) if present == 1 else None
    if found is not None and found.study != study:
        found = None
    return PoolRow(str(pool), str(study), found, _decoded(wish, Wish))


def _text(value: Member | Wish) -> str:
    return msgspec.json.encode(value).decode()


def _decoded(text: Any, kind: type[_T]) -> _T | None:
    """None where there is nothing, or the row is damaged: SQLite takes a value of any type in any column."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError):
        return None
