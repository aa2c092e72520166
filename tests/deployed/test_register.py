"""What ``hpo worker`` hands on to the runs it starts, each in a folder of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from hpo_core.home import DATABASES
from hpo_flows.deployed.permissions import NotAllowedError, home_here
from hpo_flows.deployed.register import settled_environment


@pytest.mark.parametrize(
    ("value", "settled"),
    [
        ("sqlite:///journal.db", "sqlite:///{here}/journal.db"),
        ("sqlite+pysqlite:///deep/../journal.db?timeout=3", "sqlite+pysqlite:///{here}/journal.db?timeout=3"),
        ("sqlite:///file:journal.db?uri=true", "sqlite:///file:{here}/journal.db?uri=true"),
        ("journal.db", "{here}/journal.db"),
        ("./mlruns", "{here}/mlruns"),
    ],
)
def test_a_file_named_from_here_is_named_in_full(
    value: str, settled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in DATABASES:
        monkeypatch.setenv(name, value)
    found = settled_environment()
    assert {found[name] for name in DATABASES} == {settled.format(here=tmp_path.resolve())}
    assert found["HPO_HOME"] == str(tmp_path.resolve() / ".hpo")


def test_a_run_of_a_worker_without_a_home_would_lose_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", str(uuid4()))
    monkeypatch.setenv("HPO_HOME", "here")
    with pytest.raises(NotAllowedError, match="HPO_HOME is not set to an absolute path where this runs"):
        home_here()


def test_a_working_folder_whose_name_would_be_two_import_folders_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a:b").mkdir()
    monkeypatch.chdir(tmp_path / "a:b")
    monkeypatch.delenv("HPO_IMPORT_FOLDERS", raising=False)
    with pytest.raises(NotAllowedError, match="has a ':' in its path"):
        settled_environment()
    monkeypatch.setenv("HPO_IMPORT_FOLDERS", str(tmp_path))
    assert settled_environment()["HPO_IMPORT_FOLDERS"] == str(tmp_path)


LOGS = """
import logging, sys, threading
from prefect.logging.configuration import setup_logging
from hpo_flows.deployed.flow_run_heartbeats import halt_with_worker
halt_with_worker()
setup_logging()
sys.stdin.read()
def work():
    logging.getLogger("prefect.job").warning("nobody reads this")
    open(sys.argv[1], "w").write("went on")
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_a_thread_that_logs_outlives_the_worker_that_read_it(tmp_path: Path) -> None:
    """rich raises SystemExit there, at the first line: a thread of Prefect's ended, and its flow hung."""
    file = tmp_path / "work"
    process = subprocess.Popen(
        [sys.executable, "-c", LOGS, str(file)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin and process.stdout and process.stderr
    for pipe in (process.stdout, process.stderr, process.stdin):  # the last one lets it go on
        pipe.close()
    assert process.wait(600) == 0 and file.read_text() == "went on"


FLOW = """
import signal, sys, time
from hpo_flows.deployed.flow_run_heartbeats import halt_with_worker
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
halt_with_worker()
print("begun", flush=True)
while not told:
    time.sleep(0.01)
time.sleep(1)
open(sys.argv[1], "w").write(str(len(told)))
"""
WORKER = """
import subprocess, sys, threading, time
for _ in range(50):
    threading.Thread(target=time.sleep, args=(600,)).start()
subprocess.Popen([sys.executable, "-c", *sys.argv[1:]])
time.sleep(600)
"""


def test_a_worker_with_many_threads_ends_its_flow_by_one_signal(tmp_path: Path) -> None:
    file = tmp_path / "told"
    worker = subprocess.Popen([sys.executable, "-c", WORKER, FLOW, str(file)], stdout=subprocess.PIPE)
    with worker:
        assert worker.stdout and worker.stdout.readline() == b"begun\n"
        worker.kill()
        worker.stdout.read()  # the flow has ended, too
    assert file.read_text() == "1"
