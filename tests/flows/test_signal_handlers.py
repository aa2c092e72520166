"""dask-jobqueue sets a handler for Ctrl-C where it is imported: in any thread but the main one that is an error."""

from __future__ import annotations

import importlib
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpo_flows.dask.clusters.slurm import signal_handlers_kept


def test_a_module_that_takes_ctrl_c_is_imported_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "takes_ctrl_c.py").write_text(
        "import signal\nsignal.signal(signal.SIGINT, lambda *_: None)\ndone = 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    before, real = signal.getsignal(signal.SIGINT), signal.signal

    def act() -> int:
        with signal_handlers_kept():
            return int(importlib.import_module("takes_ctrl_c").done)

    try:
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(act).result(600) == 1
        assert signal.getsignal(signal.SIGINT) is before and signal.signal is real
    finally:
        sys.modules.pop("takes_ctrl_c", None)
        signal.signal(signal.SIGINT, before)
