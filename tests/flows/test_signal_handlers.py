"""dask-jobqueue sets a handler for Ctrl-C where it is imported: in any thread but the main one that is an error."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hpo_flows.dask.clusters.slurm import signal_handlers_kept


def in_this_thread(act: Callable[[], None]) -> None:
    act()


def in_another_thread(act: Callable[[], None]) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(600)
    if raised:
        raise raised[0]


@pytest.mark.parametrize("run", [in_this_thread, in_another_thread])
def test_a_module_that_takes_ctrl_c_is_imported_without(
    run: Callable[[Callable[[], None]], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "takes_ctrl_c.py").write_text(
        "import signal\nsignal.signal(signal.SIGINT, lambda *_: None)\ndone = 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    before, real = signal.getsignal(signal.SIGINT), signal.signal
    found: list[int] = []

    def act() -> None:
        with signal_handlers_kept():
            found.append(importlib.import_module("takes_ctrl_c").done)

    try:
        run(act)
        assert found == [1] and signal.getsignal(signal.SIGINT) is before and signal.signal is real
    finally:
        sys.modules.pop("takes_ctrl_c", None)
        signal.signal(signal.SIGINT, before)


_STARTS = """
import asyncio, signal, sys, threading
from hpo_core.spec.sections import SlurmClusterSpec
from hpo_flows.dask.clusters.slurm import SlurmJobs

def start():
    SlurmJobs(SlurmClusterSpec(), "s", sys.argv[1]).scheduler().close()

async def inside_asyncio():
    called = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, called.set)
    await asyncio.to_thread(start)
    signal.raise_signal(signal.SIGINT)
    await asyncio.wait_for(called.wait(), 30)

def handlers():
    return {number: signal.getsignal(number) for number in signal.valid_signals()}

if sys.argv[2] == "asyncio":
    asyncio.run(inside_asyncio())
else:
    before = handlers()
    start() if sys.argv[2] == "main" else None
    if sys.argv[2] == "thread":
        raised = []
        threading.excepthook = raised.append
        thread = threading.Thread(target=start)
        thread.start()
        thread.join(600)
        assert not raised, raised
    assert handlers() == before
print("kept")
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["thread", "asyncio"])
def test_a_slurm_cluster_starts_in_any_thread_and_no_handler_is_lost(where: str, tmp_path: Path) -> None:
    pytest.importorskip("dask_jobqueue", reason="extra 'slurm' is not installed")
    command = [sys.executable, "-c", _STARTS, str(tmp_path), where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.stdout == "kept\n", done.stderr
