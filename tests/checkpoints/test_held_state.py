"""A state that stays in memory after its file was written: what is handed over, and to whom the memory belongs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpo_core.checkpoints import files
from hpo_core.checkpoints.held_state import LEAST_BYTES, HeldState
from hpo_core.checkpoints.shared_state import SharedState
from hpo_core.checkpoints.tree_codec import memory_of, tree_digest
from hpo_core.model.trial import Checkpoint
from tests.checkpoints.saving import save

ROOM = 1 << 30


def written(folder: Path, tree: Any, held: HeldState, *, room: int = ROOM) -> Checkpoint:
    chunks = list(map(memory_of, files.parts_of(tree)))
    checkpoint = files.write_chunks(folder, "checkpoints/a", chunks, resource=1, parent=None, durable=False)
    held.hold(checkpoint, chunks, room)
    return checkpoint


def test_what_is_handed_over_is_what_the_file_holds(tmp_path: Path) -> None:
    weight = torch.randn(3, 5)
    tree = {
        "tied": [weight, weight], "turned": torch.randn(4, 3).t(), "half": torch.randn(7).bfloat16(),
        "empty": torch.empty(0, 3), "scalar": torch.tensor(2.5), "complex": torch.randn(3, dtype=torch.complex64),
        "flags": torch.tensor([True, False]), "array": np.arange(6.0).reshape(2, 3), "one": np.array(3),
        "big-endian": np.arange(3, dtype=">i4"), "dates": np.array(["2026-01-01"], "datetime64[D]"),
        "plain": {"text": "x", "number": 0.1, "nan": float("nan"), "bytes": b"ab"},
    }  # fmt: skip
    held = HeldState()
    checkpoint = written(tmp_path, tree, held)
    from_file = files.load(tmp_path, checkpoint)
    found = held.take(checkpoint, str(tmp_path), "")
    assert found is not None and held.taken and not held.digest
    assert tree_digest(found) == tree_digest(from_file) == tree_digest(tree)
    assert found["tied"][0] is found["tied"][1]
    for name in ("tied", "turned", "array"):
        for value, wanted in zip(np.atleast_1d(found[name]), np.atleast_1d(from_file[name]), strict=True):
            assert type(value) is type(wanted)
    found["array"][0] = 1.0  # it can be written to
    assert held.take(checkpoint, str(tmp_path), "") is None, "it is handed over once"


def test_memory_that_somebody_else_has_is_copied(tmp_path: Path) -> None:
    alone, shared = torch.randn(8), torch.randn(8)
    tree, places = {"alone": alone, "shared": shared}, (alone.data_ptr(), shared.data_ptr())
    held = HeldState()
    checkpoint = written(tmp_path, tree, held)
    tree.clear()
    del alone
    found = held.take(checkpoint, str(tmp_path), "")
    assert found["alone"].data_ptr() == places[0], "nobody else has it: it is not copied"
    assert found["shared"].data_ptr() != places[1]
    assert torch.equal(found["shared"], shared) and not found["alone"]._is_view()


def test_what_was_changed_since_is_not_handed_over(tmp_path: Path) -> None:
    held, weight = HeldState(), torch.zeros(4)
    checkpoint = written(tmp_path, {"weight": weight}, held)
    weight[0] = 1.0
    assert held.take(checkpoint, str(tmp_path), "") is None


def test_one_state_is_held_at_most_and_none_without_room(tmp_path: Path) -> None:
    held = HeldState()
    first = written(tmp_path, {"weight": torch.zeros(4)}, held)
    assert held.size == first.size
    second = written(tmp_path, {"weight": torch.ones(4)}, held)
    assert held.digest == second.digest and held.take(first, str(tmp_path), "") is None
    written(tmp_path, {"weight": torch.ones(400)}, held, room=1000)
    assert not held.digest and not held.size


def test_a_state_that_the_worker_writes_is_that_of_the_file(tmp_path: Path) -> None:
    """Copied into shared memory, read by who writes it, and handed over from there to memory of its own."""
    weight = torch.randn(600, 1200)
    tree = {
        "tied": [weight, weight], "turned": torch.randn(1200, 1200).t(), "half": torch.randn(7).bfloat16(),
        "empty": torch.empty(0, 3), "scalar": torch.tensor(2.5), "complex": torch.randn(3, dtype=torch.complex64),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(), "array": np.arange(6.0).reshape(2, 3),
        "big-endian": np.arange(3, dtype=">i4"), "strided": torch.randn(8)[::2],
        "needs grad": torch.ones(3).requires_grad_(),
    }  # fmt: skip
    shared = SharedState()
    held, parts = HeldState(shared), files.parts_of(tree)
    size = sum(map(len, parts))
    assert held.copy(Checkpoint("checkpoints/a", "", 1, size), parts, ROOM)
    assert size >= LEAST_BYTES and held.size >= size
    weight.zero_()  # it was copied
    reader = SharedState(os.dup(shared.fileno()))
    checkpoint = files.write_chunks(tmp_path, "checkpoints/a", reader.read(size, lambda: None), resource=1, parent=None)
    from_file = files.load(tmp_path, checkpoint)
    assert from_file["tied"][0].abs().sum() > 0
    found = held.take(checkpoint, str(tmp_path), "")
    assert tree_digest(found) == tree_digest(from_file) and found["tied"][0] is found["tied"][1]
    shared.fill([b"\xff" * size])  # the next state
    assert tree_digest(found) == tree_digest(from_file), "it has memory of its own"


def test_a_state_of_another_digest_is_not_handed_over(tmp_path: Path) -> None:
    shared = SharedState()
    held, tree = HeldState(shared), {"weight": torch.randn(1500, 1500)}
    checkpoint = save(tmp_path, "checkpoints/a", tree, resource=1)
    parts = files.parts_of({"weight": tree["weight"] + 1})
    assert held.copy(Checkpoint("checkpoints/a", "", 1, checkpoint.size), parts, ROOM)
    assert held.take(checkpoint, str(tmp_path), "") is None
    assert not held.copy(Checkpoint("checkpoints/a", "", 1, checkpoint.size), parts, -1), "no room"


def test_nobody_can_cut_the_memory_that_a_worker_reads() -> None:
    shared = SharedState()
    shared.fill([b"x" * 100])
    with pytest.raises(PermissionError):
        os.ftruncate(shared.fileno(), 10)
