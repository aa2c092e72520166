"""One retraining at a time for each model, whatever becomes of the process that holds the lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpo_core.home import Home
from hpo_flows.retrain import RetrainingBusyError, only_retraining
from tests.flows.conftest import ROOT

HOLD = """
import sys, time
from hpo_core.home import Home
from hpo_flows.retrain import only_retraining
with only_retraining(Home(sys.argv[1]), "digits", "flow run first"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_killed_process_holds_no_lock(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    command = [sys.executable, "-c", HOLD, str(home.folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(RetrainingBusyError, match="flow run first"), only_retraining(home, "digits", "second"):
            pass
        with only_retraining(home, "letters", "flow run of another model"):
            pass
        other.send_signal(signal.SIGKILL)
    with (
        only_retraining(home, "digits", "third"),
        pytest.raises(RetrainingBusyError, match="third"),
        only_retraining(home, "digits", "fourth"),
    ):
        pass
    with only_retraining(home, "digits", "fifth"):
        pass
