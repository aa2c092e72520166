"""Measurements in the journal's database: one table, made at first use."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import msgspec
import sqlalchemy as sa

from hpo_core.journal.protocol import PER_KEY, PER_OBJECTIVE
from hpo_core.model.devices.measurement import Measurement

log = logging.getLogger("hpo.history")

_metadata = sa.MetaData()
_table = sa.Table(
    "hpo_measurements",
    _metadata,
    sa.Column("identity", sa.String(64), primary_key=True),
    sa.Column("objective", sa.String(64), nullable=False),
    sa.Column("key", sa.String(64), nullable=False),
    sa.Column("measured_at", sa.Double, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("hpo_measurements_by_objective", "objective", "key", "measured_at"),
)
_CHUNK = 500
LOCK_MILLISECONDS = 30_000
"""As long as SQLite waits for other writers."""
_decode = msgspec.json.Decoder(Measurement).decode


class SqlMeasurements:
    """Measurements in a table of the journal's database.

    Args:
        engine: of the journal; each write is a transaction of its own.
        reader: the same, without transactions.
        translated: gives errors of the database as those of the journal; its argument is the verb of the message.
    """

    def __init__(
        self, engine: sa.Engine, reader: sa.Engine, translated: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        self._engine = engine
        self._reader = reader
        self._translated = translated

    def read(self, objective: str, code: str) -> list[Measurement]:
        found = self._read(_table.c.objective == _digest(objective))
        return [one for one in found if (one.objective, one.code) == (objective, code)]

    def all(self) -> list[Measurement]:
        return self._read(sa.true())

    def _read(self, where: sa.ColumnElement[bool]) -> list[Measurement]:
        query = sa.select(_table.c.body).where(where).order_by(_table.c.measured_at, _table.c.identity.desc())
        with self._translated("read"), self._reader.connect() as connection:
            if not sa.inspect(connection).has_table(_table.name):
                return []
            bodies = connection.execute(query).scalars().all()
        found = [_decoded(body) for body in bodies]
        if damaged := found.count(None):
            log.warning("%d measurements in the history are damaged and left out", damaged)
        return [one for one in found if one is not None]

    def add(self, found: Sequence[Measurement]) -> int:
        rows = {one.identity: _row(one) for one in found}
        if not rows:
            return 0
        with self._writing() as connection:
            return _insert(connection, rows)

    def forget(self, found: Collection[Measurement]) -> int:
        with self._writing() as connection:
            return _delete(connection, [one.identity for one in found])

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        # A transaction that no other writer's overlaps: two that drop the same rows might wait for each other.
        with self._translated("written"):
            self._make_table()
            with self._engine.begin() as connection:
                if connection.dialect.name == "postgresql":
                    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_MILLISECONDS}")
                    connection.exec_driver_sql(f"LOCK TABLE {_table.name} IN SHARE ROW EXCLUSIVE MODE")
                yield connection

    def _make_table(self) -> None:
        with self._reader.connect() as connection:
            if sa.inspect(connection).has_table(_table.name):
                return
        with suppress(sa.exc.IntegrityError, sa.exc.ProgrammingError):  # another process was quicker
            _metadata.create_all(self._engine)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _row(one: Measurement) -> dict[str, str | float]:
    return {
        "identity": one.identity,
        "objective": _digest(one.objective),
        "key": _digest("\n".join((one.code, one.architecture, one.key))),
        "measured_at": one.measured_at,
        "body": msgspec.json.encode(one, order="sorted").decode(),
    }


def _insert(connection: sa.Connection, rows: dict[str, dict[str, str | float]]) -> int:
    # Insert what is not there, and drop what is too much; returns how many are new.
    known: set[str] = set()
    for chunk in _chunks(list(rows)):
        known.update(connection.execute(sa.select(_table.c.identity).where(_table.c.identity.in_(chunk))).scalars())
    new = [row for identity, row in rows.items() if identity not in known]
    if not new:
        return 0
    connection.execute(_table.insert(), new)
    for objective, key in sorted({(row["objective"], row["key"]) for row in new}):
        _keep_newest(connection, (_table.c.objective == objective) & (_table.c.key == key), PER_KEY)
    for objective in sorted({row["objective"] for row in new}):
        _keep_newest(connection, _table.c.objective == objective, PER_OBJECTIVE)
    return len(new)


def _keep_newest(connection: sa.Connection, where: sa.ColumnElement[bool], count: int) -> None:
    newest = (_table.c.measured_at.desc(), _table.c.identity)
    query = sa.select(_table.c.identity).where(where).order_by(*newest).offset(count)
    _delete(connection, list(connection.execute(query.limit(2**31 - 1)).scalars()))


def _delete(connection: sa.Connection, identities: Sequence[str]) -> int:
    return sum(
        connection.execute(_table.delete().where(_table.c.identity.in_(chunk))).rowcount
        for chunk in _chunks(identities)
    )


def _chunks(identities: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(identities), _CHUNK):
        yield identities[start : start + _CHUNK]


def _decoded(body: Any) -> Measurement | None:
    # None where the row is damaged: SQLite takes a value of any type in any column.
    try:
        return _decode(body)
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError):
        return None
