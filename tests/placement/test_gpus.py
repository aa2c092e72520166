"""Cards through the real nvidia-ml-py and a stand-in for the driver's library; the MPS daemon of a person."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpo_core.placement.gpus import architecture, pipes_for, why_off
from tests.mps_daemon import running_daemon
from tests.nvml_stub.cards import GIB, Cards, build

READ = """
import json, msgspec
from hpo_core.placement.gpus import NoNvmlError, read_gpus
try:
    print(msgspec.json.encode(read_gpus()).decode())
except NoNvmlError as error:
    print(json.dumps({"error": str(error)}))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def cards(tmp_path: Path) -> Cards:
    return Cards(tmp_path / "cards")


def read(cards: Cards, library: Path) -> Any:
    """In a process of its own: nvidia-ml-py loads the library once and for all."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py comes with the extra 'gpu'")
    done = subprocess.run(
        [sys.executable, "-c", READ], env=cards.environment(library), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_cards_of_two_kinds_with_their_processes(cards: Cards, library: Path) -> None:
    cards.put("GPU-a", kept=GIB)
    cards.put("GPU-b", name="NVIDIA H100 80GB HBM3", memory=94 * GIB)
    cards.hold(os.getpid(), "GPU-a", 20 * GIB, percent=37)
    cards.hold(2**22 + 1, "GPU-b", GIB)  # no such process: its memory is free again
    one, other = read(cards, library)
    assert one == {
        "uuid": "GPU-a",
        "index": 0,
        "name": "NVIDIA A100-SXM4-80GB",
        "memory": 80 * GIB,
        "memory_free": 59 * GIB,
        "processes": [[os.getpid(), 20 * GIB]],
    }
    assert (other["uuid"], other["memory_free"], other["processes"]) == ("GPU-b", 94 * GIB, [])


def test_a_card_with_slices_is_its_slices(cards: Cards, library: Path) -> None:
    cards.put("GPU-a")
    cards.put_slice("GPU-a", "MIG-1", name="NVIDIA A100-SXM4-80GB MIG 3g.40gb", memory=40 * GIB)
    cards.put_slice("GPU-a", "MIG-2", name="NVIDIA A100-SXM4-80GB MIG 1g.10gb", memory=10 * GIB)
    cards.put("GPU-b")
    found = read(cards, library)
    assert [(gpu["uuid"], gpu["index"]) for gpu in found] == [("MIG-1", 0), ("MIG-2", 0), ("GPU-b", 1)]


@pytest.mark.parametrize("state", ["lost", "silent"])
def test_a_lost_card_is_left_out_and_the_others_are_read(cards: Cards, library: Path, state: str) -> None:
    cards.put("GPU-a", state=state)
    cards.put("GPU-b")
    assert [gpu["uuid"] for gpu in read(cards, library)] == ["GPU-b"]


def test_without_a_driver_the_error_says_what_to_look_at(cards: Cards, library: Path) -> None:
    cards.set_driver_absent()
    assert "NVML says 'Driver Not Loaded'" in read(cards, library)["error"]
    assert "nvidia-smi" in read(cards, library)["error"]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA H100 NVL", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("Quadro RTX 8000", "RTX 8000"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100-1g.10gb"),
        ("NVIDIA", "NVIDIA"),
        ("", ""),
    ],
)
def test_architectures(name: str, short: str) -> None:
    assert architecture(name) == short


def test_processes_that_share_a_card_through_mps_are_seen(cards: Cards, library: Path) -> None:
    cards.put("GPU-a")
    cards.hold(os.getpid(), "GPU-a", 20 * GIB)
    cards.share_through_mps()
    (gpu,) = read(cards, library)
    assert gpu["processes"] == [[os.getpid(), 20 * GIB]]


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
