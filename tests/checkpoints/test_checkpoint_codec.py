"""What goes into a checkpoint comes out of it, exactly; what cannot is refused by name."""

import math
import random
import struct
from collections import Counter, OrderedDict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from hpo_core.checkpoints import files as checkpoints
from hpo_core.checkpoints.files import write_weights
from hpo_core.model.errors import CheckpointError
from hpo_core.model.trial import Checkpoint
from hpo_core.tracking.run_artifacts import Trained, write_plain
from hpo_core.training.saved_state import capture_all, put_state, restore_all, seed_all, state_of
from tests.checkpoints.saving import save


def through_file(folder, tree):
    return checkpoints.load(folder, save(folder, "checkpoints/a.safetensors", tree, resource=1))


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, np.generic):
        return a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(k, m) and same(v, w) for (k, v), (m, w) in zip(a.items(), b.items(), strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def raw(tensor):
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**63, 2**200)
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.binary(max_size=8)
)
keys = st.text(st.characters(), max_size=5) | st.integers() | st.booleans() | st.none() | st.tuples(st.integers())
numpy_types = ["f8", "f4", "f2", "i8", "i2", "u8", "u1", "?", "c8", "c16", ">f8", "M8[s]"]
arrays = st.builds(
    lambda dtype, shape, seed: (
        np.frombuffer(random.Random(seed).randbytes(int(np.prod(shape)) * 16), np.uint8)[
            : int(np.prod(shape)) * np.dtype(dtype).itemsize
        ]
        .copy()
        .view(dtype)
        .reshape(shape)
        if dtype != "?"
        else np.random.default_rng(seed).random(shape) < 0.5
    ),
    st.sampled_from(numpy_types),
    st.sampled_from([(), (0,), (3,), (2, 3), (2, 0, 1)]),
    st.integers(0, 99),
).filter(lambda value: isinstance(value, np.ndarray))
torch_types = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
tensors = st.builds(
    lambda dtype, shape, seed: torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype),
    st.sampled_from([*torch_types, torch.complex64, torch.complex128, torch.uint16, torch.float8_e4m3fn]),
    st.sampled_from([(), (0,), (3,), (2, 3), (2, 0, 1)]),
    st.integers(0, 99),
)
trees = st.recursive(
    scalars | arrays | tensors | st.just(torch.Size((2, 3))),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=12,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(tree=trees)
def test_every_tree_is_restored_exactly(tree, tmp_path):
    assert same(tree, through_file(tmp_path, tree))


@pytest.mark.parametrize(
    "value",
    [
        -0.0,
        math.inf,
        -math.inf,
        struct.unpack("d", bytes.fromhex("010000000000f87f"))[0],
        np.float32(1.5),
        np.int64(-3),
        Counter({5: 2, 8: 1}),
        {1: "a", "1": "b"},
        {"__metadata__": torch.ones(1), "a": {"b": torch.ones(1)}, "a/b": torch.zeros(1)},
        {"tensor": "not a tag", "dict": {}},
    ],
)
def test_unusual_values_are_restored_exactly(value, tmp_path):
    assert same(value, through_file(tmp_path, value))


def test_tied_tensors_are_stored_once_and_stay_tied(tmp_path):
    weight = torch.randn(100, 100)
    saved = save(tmp_path, "a", {"encoder": weight, "decoder": weight}, resource=1)
    assert saved.size < 1.5 * weight.nbytes
    back = checkpoints.load(tmp_path, saved)
    assert back["encoder"] is back["decoder"] and torch.equal(back["encoder"], weight)


def test_the_file_is_plain_safetensors(tmp_path):
    model = torch.nn.Linear(3, 2)
    saved = save(tmp_path, "a", {"model": model.state_dict(), "rng": np.arange(3)}, resource=1)
    with safe_open(tmp_path / saved.uri, "pt") as file:
        assert set(file.keys()) == {"model/weight", "model/bias", "rng"}
        assert torch.equal(file.get_tensor("model/weight"), model.weight)


def test_state_dict_keeps_its_versions(tmp_path):
    state = torch.nn.BatchNorm1d(3).state_dict()
    assert through_file(tmp_path, state)._metadata == state._metadata


@pytest.mark.parametrize(
    "value",
    [
        lambda: 0,
        Fraction(1, 2),
        {1},
        1j,
        torch.float32,
        np.array([object()]),
        np.array(["text"]),
        torch.ones(2).to_sparse(),
        torch.empty(2, device="meta"),
    ],
)
def test_an_unsupported_value_is_refused_with_path_and_type(value, tmp_path):
    with pytest.raises(CheckpointError) as caught:
        through_file(tmp_path, {"tracked": {"model": [1, value]}})
    text = str(caught.value)
    assert "tracked/model/1" in text and type(value).__qualname__ in text and "state_dict()" in text


def test_a_tree_that_contains_itself_is_refused(tmp_path):
    loop = []
    loop.append(loop)
    with pytest.raises(CheckpointError, match="contains itself"):
        through_file(tmp_path, loop)


def test_global_generators_continue_after_a_restore(tmp_path):
    seed_all(3)
    random.gauss(0, 1), np.random.randn(), torch.randn(1)
    states = through_file(tmp_path, capture_all())
    expected = [random.gauss(0, 1), np.random.randn(3).tolist(), torch.randn(3).tolist()]
    seed_all(4)
    restore_all(states)
    assert [random.gauss(0, 1), np.random.randn(3).tolist(), torch.randn(3).tolist()] == expected


@pytest.mark.parametrize(
    ("generator", "draw"),
    [
        (random.Random(1), lambda g: g.random()),
        (np.random.default_rng(1), lambda g: g.random()),
        (np.random.Generator(np.random.MT19937(1)), lambda g: g.random()),
        (np.random.Generator(np.random.Philox(1)), lambda g: g.random()),
        (np.random.RandomState(1), lambda g: g.randn()),
        (torch.Generator().manual_seed(1), lambda g: torch.rand(1, generator=g).item()),
    ],
)
def test_tracked_generators_continue_after_a_restore(generator, draw, tmp_path):
    draw(generator)
    state = through_file(tmp_path, state_of(generator))
    expected = draw(generator)
    draw(generator)
    put_state(generator, state)
    assert draw(generator) == expected


def saved(folder: Path, **tracked: Any) -> Path:
    tree = {"trial": 3, "random": {"torch": torch.get_rng_state()}, "metrics": {"loss": 1.0}, "tracked": tracked}
    save(folder, "c.safetensors", tree, resource=1)
    return folder / "c.safetensors"


def test_a_module_takes_the_weights_alone_to_the_bit(tmp_path: Path) -> None:
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
