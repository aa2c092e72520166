"""A study whose Prefect server is away for the rest of it, or for a while."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from hpo_flows.prefect_api.shared_server import SharedServer
from tests.flows.conftest import LIMIT, Runner, at_load, server_file, wait_for_entries
from tests.flows.prefect_front import How, PrefectFront

AWAY = [how for how in get_args(How) if how != "there"]
SEARCH = {"method": "random", "configs": 12, "max_resource": 2}


@pytest.fixture
def front(prefect_server: SharedServer) -> Iterator[PrefectFront]:
    made = PrefectFront(prefect_server.url)
    yield made
    made.close()


def begun(hpo: Runner, front: PrefectFront, study: str) -> subprocess.Popen[str]:
    """A study that waits for ``gate`` after four jobs."""
    hpo.environment["PREFECT_API_URL"] = f"{front.url}/api"
    gate = hpo.folder / "gate"
    gate.write_text("4")
    file = hpo.study("held", study=study, search=SEARCH, constants={"gate": str(gate)}, prefect="auto")
    process = hpo.start("tune", file)
    wait_for_entries(hpo, study, 6, process)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("how", AWAY)
def test_a_study_ends_as_usual_where_prefect_is_away(how: How, hpo: Runner, front: PrefectFront) -> None:
    process = begun(hpo, front, f"away-{how}")
    front.become(how)
    (hpo.folder / "gate").unlink()
    assert process.stdout is not None
    out = ""
    while f"away-{how} finished: 12 trials, 12 jobs" not in out:  # the result comes first
        line = process.stdout.readline()
        assert line, (out, process.communicate())
        out += line
    shown = time.monotonic()
    rest, err = process.communicate(timeout=LIMIT)
    seconds = time.monotonic() - shown
    print(f"{how}: {seconds:.1f} s\n{err}")
    assert process.returncode == 0, err
    assert seconds < at_load(25), "its end waits for Prefect, for a limited time"
    assert err.count("does not show") == 1 and "Traceback" not in out + rest + err, err
    assert "clean" in hpo("audit", f"away-{how}")


@pytest.mark.slow
def test_an_interrupted_study_ends_soon_where_prefect_is_away(hpo: Runner, front: PrefectFront) -> None:
    process = begun(hpo, front, "stopped")
    front.become("hanging")
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    out, err = process.communicate(timeout=LIMIT)
    seconds = time.monotonic() - sent
    print(f"{seconds:.1f} s\n{err}")
    assert process.returncode == 130, out + err
    assert "hpo resume stopped" in err and "Traceback" not in out + err, err
    assert seconds < at_load(12), "the workers end, and Prefect is waited for 5 s"


@pytest.mark.slow
def test_a_study_ends_as_usual_where_prefects_database_is_locked(tmp_path: Path) -> None:
    hpo = Runner(tmp_path, {}, prefect="jobs")  # with a server of its own
    gate = tmp_path / "gate"
    gate.write_text("4")
    process = hpo.start("tune", hpo.study("held", study="locked", search=SEARCH, constants={"gate": str(gate)}))
    server_file(hpo, process)
    wait_for_entries(hpo, "locked", 6, process)
    with contextlib.closing(sqlite3.connect(hpo.home / "prefect" / "prefect.db", timeout=300)) as database:
        database.execute("BEGIN EXCLUSIVE")
        gate.unlink()
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0 and "locked finished: 12 trials, 12 jobs" in out, out + err
    assert err.count("does not show") == 1 and "Traceback" not in out + err, err
    assert "clean" in hpo("audit", "locked")
