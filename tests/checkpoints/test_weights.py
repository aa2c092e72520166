"""A checkpoint's weights alone: a plain state_dict that torch loads."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hpo_core.checkpoints.files import write_weights
from hpo_core.model.errors import CheckpointError
from hpo_core.model.trial import Checkpoint
from hpo_core.tracking.run_artifacts import Trained, write_plain
from tests.checkpoints.saving import save


def saved(folder: Path, **tracked: Any) -> Path:
    tree = {"trial": 3, "random": {"torch": torch.get_rng_state()}, "metrics": {"loss": 1.0}, "tracked": tracked}
    save(folder, "c.safetensors", tree, resource=1)
    return folder / "c.safetensors"


def test_a_module_takes_them_to_the_bit(tmp_path: Path) -> None:
    def make() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5), torch.nn.Linear(7, 2).double())

    trained = make()
    optimizer = torch.optim.Adam(trained.parameters())
    source = saved(tmp_path, optimizer=optimizer.state_dict(), model=trained.state_dict())
    assert write_weights(source, tmp_path / "weights.safetensors") == "model"
    found = load_file(tmp_path / "weights.safetensors")
    assert {key: (value.dtype, value.shape) for key, value in found.items()} == {
        key: (value.dtype, value.shape) for key, value in trained.state_dict().items()
    }
    fresh = make()
    fresh.load_state_dict(found)
    for key, value in trained.state_dict().items():
        assert torch.equal(value, fresh.state_dict()[key])


def test_odd_types_tied_weights_and_empty_tensors(tmp_path: Path) -> None:
    shared = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    state = OrderedDict(a=shared, b=shared, flag=torch.tensor(True), none=torch.zeros(0, 4), half=torch.ones(3).half())
    write_weights(saved(tmp_path, net=state), tmp_path / "w.safetensors")
    found = load_file(tmp_path / "w.safetensors")
    assert sorted(found) == sorted(state)
    for key, value in state.items():
        assert torch.equal(found[key], value) and found[key].dtype == value.dtype


def test_the_only_one_with_weights_is_the_model_whatever_its_name(tmp_path: Path) -> None:
    tracked = {"student": {"w": torch.ones(2)}, "ema": {"decay": 0.9, "w": torch.ones(2)}}
    assert write_weights(saved(tmp_path, **tracked), tmp_path / "w") == "student"
    arrays = {"boosted": {"w": np.ones(3)}}
    assert write_weights(saved(tmp_path, **arrays), tmp_path / "w") == "boosted"


@pytest.mark.parametrize(
    "tracked",
    [{}, {"optimizer": {"state": {}, "lr": 0.1}}, {"left": {"w": torch.ones(1)}, "right": {"w": torch.ones(1)}}],
)
def test_without_a_model_that_can_be_told(tmp_path: Path, tracked: dict[str, Any]) -> None:
    source = saved(tmp_path, **tracked)
    with pytest.raises(CheckpointError, match=r"trial\.track\(model=...\)"):
        write_weights(source, tmp_path / "w")
    assert not (tmp_path / "w").exists()


def test_no_model_is_made_of_a_corrupt_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "c.safetensors"
    file.write_bytes(b"something else")
    model = Trained({"lr": 0.1}, Checkpoint(file.name, "0" * 64, 1, 14), str(tmp_path))
    with pytest.raises(CheckpointError, match=r"is corrupt: its SHA-256 is \w{12}\.\.\., 0{12}\.\.\. was written"):
        write_plain(model, file, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name]
