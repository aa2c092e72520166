"""Journals of every kind; PostgreSQL is started for the tests where its binaries are installed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpo_core import MemoryJournal
from hpo_core.journal.base import Journal
from hpo_core.journal.sql import SqlJournal


def _postgresql_binaries() -> Path | None:
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return versions[-1].parent if versions else None


@pytest.fixture(scope="session")
def postgresql_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of an empty database on a server of our own, on a free port of 127.0.0.1."""
    binaries = _postgresql_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL server binaries (initdb, postgres) are not installed")
    pytest.importorskip("psycopg")
    folder = tmp_path_factory.mktemp("postgresql")
    as_user: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        if shutil.which("setpriv") is None or subprocess.run(["id", "postgres"], capture_output=True).returncode:
            pytest.skip("running as root without the user 'postgres' to start PostgreSQL as")
        for parent in (folder, *folder.parents[:3]):
            parent.chmod(0o755)
        shutil.chown(folder, "postgres", "postgres")
    data = folder / "data"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    subprocess.run(
        [*as_user, str(binaries / "initdb"), "-D", str(data), "-U", "hpo", "-A", "trust", "--no-sync"],
        check=True, capture_output=True, cwd=folder,
    )  # fmt: skip
    server = subprocess.Popen(
        [*as_user, str(binaries / "postgres"), "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder,
    )  # fmt: skip
    try:
        for _ in range(100):
            ready = subprocess.run(
                [str(binaries / "pg_isready"), "-h", "127.0.0.1", "-p", str(port)], capture_output=True
            )
            if ready.returncode == 0:
                break
            try:
                server.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            raise RuntimeError("PostgreSQL ended while it started")
        yield f"postgresql+psycopg://hpo@127.0.0.1:{port}/postgres"
    finally:
        server.send_signal(signal.SIGINT)  # SIGTERM would wait for MLflow's pooled connections
        server.wait(10)


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Journal]]:
    """A function that opens the same journal again, as another process would."""
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
        for table in ("hpo_entries", "hpo_studies", "hpo_meta"):
            connection.execute(sa.text(f"DROP TABLE IF EXISTS {table}"))
    engine.dispose()
