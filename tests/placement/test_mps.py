"""The MPS daemon that a person started: a real process, whose program is a stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpo_core.placement.gpus import pipes_for, why_off
from tests.mps_daemon import running_daemon


def test_a_daemon_is_used_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    with running_daemon(tmp_path):
        assert pipes_for("GPU-a", tmp_path) == str(tmp_path) and why_off(["GPU-a"], tmp_path) == ""
        said = why_off(["GPU-a", "MIG-1", "MIG-2"], tmp_path)
        assert said.startswith("MPS is off for MIG-1, MIG-2: ")
    assert pipes_for("GPU-a", tmp_path) == ""
    assert "nvidia-cuda-mps-control -d" in why_off(["GPU-a"], tmp_path)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/given")
    assert pipes_for("GPU-a", tmp_path) == "/given"


@pytest.mark.parametrize("device", ["MIG-1c", "cpu:host", "GPU-../../etc", "GPU-a/b", ""])
def test_slices_and_names_that_lead_elsewhere_have_none(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/given")
    assert pipes_for(device) == ""
