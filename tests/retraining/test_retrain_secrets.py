"""A retraining whose journal and MLflow lie behind passwords: neither Prefect nor any file gets to know them."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.contracts.conftest import postgresql_url  # noqa: F401 - a fixture
from tests.dask_processes import DaskProcesses
from tests.flows.conftest import LIMIT, ROOT, Runner
from tests.retraining.test_retrain_tasks import begun

PLANTED = "pl4nted-s3cret"

pytestmark = [pytest.mark.slow, pytest.mark.postgresql]


def database(server_url: str) -> str:
    """A database of our own; its URL has a password in both places, and the server asks for none."""
    name = f"hpo_{uuid.uuid4().hex}"
    server = sa.create_engine(server_url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    server.dispose()
    return server_url.replace("hpo@", f"hpo:{PLANTED}@").rpartition("/")[0] + f"/{name}?password={PLANTED}"


def kept_in(url: str) -> dict[str, str]:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        tables = sa.inspect(connection).get_table_names()
        found = {
            table: "\n".join(connection.execute(sa.text(f'SELECT t::text FROM "{table}" t')).scalars())
            for table in tables
        }
    engine.dispose()
    return found


def test_no_password_of_the_settings_is_stored_or_printed(
    hpo: Runner,
    dask_processes: DaskProcesses,
    postgresql_url: str,  # noqa: F811
) -> None:
    for name in ("one", "two"):
        dask_processes.add_worker(name)
    url = database(postgresql_url)
    begun(hpo, url, cluster=dask_processes.cluster)
    (hpo.folder / "similar.json").write_text(json.dumps({"offset": 0.2, "seed": 1}))

    def retrained(code: int, **settings: str) -> str:
        command = (
            "import json, sys; from hpo_flows.retrain import Rules, retrain; found = retrain(model='line', "
            f"data={str(hpo.folder / 'similar.json')!r}, study='line', rules=Rules(repeats=2), "
            "evaluate='tests.retraining.retrain_objectives:evaluate'); print(json.dumps(found))"
        )
        done = subprocess.run(
            [sys.executable, "-c", command], env=hpo.environment | {"PYTHONPATH": str(ROOT)} | settings,
            cwd=hpo.folder, capture_output=True, text=True, timeout=2 * LIMIT,
        )  # fmt: skip
        (hpo.folder / f"{uuid.uuid4().hex}.log").write_text(done.stdout + done.stderr)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    said = retrained(0, HPO_DATABASE=url)
    found = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    assert found["champion"] == 1 and found["challenger"] == 2 and found["branches"] == ["trained again"]
    down = retrained(1, HPO_DATABASE=url, MLFLOW_TRACKING_URI=f"http://me:{PLANTED}@127.0.0.1:9")
    assert "MLflow cannot be reached" in down and "127.0.0.1:9/" in down
    assert "password=*** (it holds: no study)" in retrained(1, HPO_JOURNAL=database(postgresql_url))

    tables = kept_in(url)
    assert found["study"] in tables["hpo_entries"] and found["mlflow_run"] in tables["runs"]
    assert [table for table, rows in tables.items() if PLANTED in rows] == []
    files = [path for path in hpo.folder.rglob("*") if path.is_file()]
    files += [path for path in Path(hpo.environment["PREFECT_HOME"]).rglob("*") if path.is_file()]
    assert {"prefect.db", "mlflow.log", "report.html"} <= {path.name for path in files}
    assert [str(path) for path in files if PLANTED.encode() in path.read_bytes()] == []
