from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpo_core import MemoryJournal
from hpo_core.journal.protocol import Journal
from hpo_core.journal.sql import SqlJournal
from tests.postgresql import PostgreSQL


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """URL of an empty database on a server of our own, on a free port of 127.0.0.1."""
    server = PostgreSQL()
    try:
        server.start()
        yield server.url
    finally:
        server.remove()


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Journal]]:
    if request.param == "memory":
        kept = MemoryJournal()
        yield lambda: kept
        return
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'journal.db'}"
    else:
        url = request.getfixturevalue("postgresql_url")
        _drop_all(url)
    opened: list[SqlJournal] = []

    def make() -> SqlJournal:
        opened.append(SqlJournal(url))
        return opened[-1]

    yield make
    for journal in opened:
        journal.close()


def _drop_all(url: str) -> None:
    import sqlalchemy as sa

    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for table in ("hpo_members", "hpo_measurements", "hpo_entries", "hpo_studies", "hpo_meta"):
            connection.execute(sa.text(f"DROP TABLE IF EXISTS {table}"))
    engine.dispose()
