from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.hosts.lab import Host
from tests.postgresql import binaries
from tests.waiting import eventually

AS_POSTGRES = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
DATA = Path("/tmp/postgresql")


class PostgreSQLHost:
    """A PostgreSQL server on a host; its data survive a reboot."""

    def __init__(self, host: Host) -> None:
        pytest.importorskip("psycopg")
        self._bin, self.host = binaries(), host
        host.run("sh", "-c", f"mkdir {DATA} && chown postgres {DATA}")
        host.run(*AS_POSTGRES, self._bin / "initdb", "-D", DATA / "data", "-U", "hpo", "-A", "trust", "--no-sync")
        host.run("sh", "-c", f"echo 'host all all 10.31.0.0/24 trust' >> {DATA}/data/pg_hba.conf")
        self.url = f"postgresql+psycopg://hpo@{host.name}:5432/postgres"
        """As hosts of the lab reach it."""
        self.start()

    def start(self) -> None:
        options = ["-D", DATA / "data", "-h", "*", "-k", DATA]
        self.process = self.host.start(*AS_POSTGRES, self._bin / "postgres", *options, log="postgresql.log")
        port = self.host.forward(5432)
        self.url_here = f"postgresql+psycopg://hpo@127.0.0.1:{port}/postgres"
        """As this machine reaches it, whatever is cut; another one after a reboot."""
        eventually(self._answers, process=self.process, said=lambda: self.process.said)

    def _answers(self) -> bool:
        engine = sa.create_engine(self.url_here)
        try:
            with engine.connect():
                return True
        except sa.exc.OperationalError:
            return False
        finally:
            engine.dispose()
