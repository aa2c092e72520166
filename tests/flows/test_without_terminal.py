"""A study goes on without whoever reads its output; the end of its terminal halts it in order."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import psutil
import pytest

from hpo_core import Outcome, Study
from hpo_core.home import Home
from hpo_core.replay.audit import audit
from tests.flows.conftest import LIMIT, Runner, wait_for_entries

SEARCH = {"method": "random", "configs": 12, "max_resource": 2}


@pytest.fixture
def hpo(tmp_path: Path) -> Runner:
    return Runner(tmp_path, {})


def started(hpo: Runner, command: list[str], output: int, *ignored: int) -> subprocess.Popen[bytes]:
    """A process that leads a session; where ``output`` is a terminal, that is its own."""

    def prepare() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        if os.isatty(output):
            fcntl.ioctl(output, termios.TIOCSCTTY, 0)

    return subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=hpo.environment, cwd=hpo.folder,
        start_new_session=True, preexec_fn=prepare,
    )  # fmt: skip


def recorded(hpo: Runner) -> Study:
    with contextlib.closing(Home(hpo.home).read_journal()) as journal:
        assert audit(journal.entries("toy")).clean
        return Study.open("toy", journal, reading=True)


def is_finished(hpo: Runner, trials: int = 12) -> bool:
    study = recorded(hpo)
    return study.finished and len(study.state.trials) == trials


@pytest.mark.slow
def test_a_pipe_that_nobody_reads_any_more_ends_no_study(hpo: Runner) -> None:
    process = hpo.start("tune", hpo.study("slow", search=SEARCH))
    assert process.stdout is not None and process.stderr is not None
    for _ in range(3):
        assert process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(LIMIT) == 0, err
    assert "Traceback" not in err and err.count("can no longer be written") == 1 and "hpo status toy" in err, err
    assert is_finished(hpo)


def test_a_study_that_is_to_outlive_its_terminal_does(hpo: Runner) -> None:
    """As with nohup, or a shell that disowns it; the board was drawn in that terminal."""
    command = ["-m", "hpo_flows", "tune", str(hpo.study("slow", search=SEARCH))]
    terminal, output = pty.openpty()
    process = started(hpo, command, output, signal.SIGHUP)
    os.close(output)
    drain_until(hpo, terminal, process)
    os.close(terminal)
    assert process.wait(LIMIT) == 0
    assert is_finished(hpo)


def drain_until(hpo: Runner, terminal: int, process: subprocess.Popen[bytes], entries: int = 5) -> None:
    os.set_blocking(terminal, False)
    while True:
        with contextlib.suppress(BlockingIOError):
            os.read(terminal, 65536)
        with contextlib.suppress(AssertionError):
            wait_for_entries(hpo, "toy", entries, process, seconds=0.2)  # type: ignore[arg-type]
            return
        assert process.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["leader", "group"])
def test_the_end_of_its_terminal_halts_a_study_in_order(whom: str, hpo: Runner) -> None:
    """The kernel tells the leader of the session; a shell tells each of its jobs, workers included."""
    search = SEARCH | {"configs": 72}
    terminal, output = pty.openpty()
    process = started(hpo, ["-m", "hpo_flows", "tune", str(hpo.study("slow", search=search))], output)
    os.close(output)
    drain_until(hpo, terminal, process)
    children = psutil.Process(process.pid).children(recursive=True)
    if whom == "group":
        os.killpg(process.pid, signal.SIGHUP)
    os.close(terminal)
    assert process.wait(LIMIT) == 130
    _, alive = psutil.wait_procs(children, timeout=LIMIT)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
    state = recorded(hpo).state
    assert state.halted is not None and state.halted.reason == "interrupted"
    assert not [failure for trial in state.trials for failure in trial.failures if failure.outcome is Outcome.LOST]
    hpo("resume", "toy", "--no-prefect")
    assert is_finished(hpo, 72)


@pytest.mark.slow
def test_a_study_in_the_background_of_a_script_ends_at_sigterm(hpo: Runner) -> None:
    """There Ctrl-C is ignored."""
    log = os.open(hpo.folder / "log", os.O_WRONLY | os.O_CREAT)
    command = ["-m", "hpo_flows", "tune", str(hpo.study("slow", search=SEARCH | {"configs": 40}))]
    process = started(hpo, command, log, signal.SIGINT)
    os.close(log)
    wait_for_entries(hpo, "toy", 5, process)  # type: ignore[arg-type]
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT) == 130
    assert recorded(hpo).status == "halted"
    said = Path(hpo.folder / "log").read_text()
    assert "hpo resume toy" in said and "Traceback" not in said
