"""Damage of a checkpoint's file, each single byte of it, and headers that somebody made up."""

from __future__ import annotations

import inspect
import io
import json
import pickle
import sys
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from blake3 import blake3

from hpo_core.checkpoints import files
from hpo_core.checkpoints.tree_codec import memory_of, tree_bytes, tree_of
from hpo_core.model.errors import CheckpointError
from hpo_core.model.trial import Checkpoint

TREE = {
    "trial": 1,
    "tracked": OrderedDict(weight=torch.arange(4.0), bias=torch.ones(2, dtype=torch.complex128)),
    "random": {"numpy": ("MT19937", np.arange(3, dtype=">u4"), 2**70), "python": (3, tuple(range(5)), None)},
    "more": [
        np.float32(0.5),
        float("nan"),
        b"bytes",
        Counter("aab"),
        {1: torch.Size([2])},
        np.array(["2026"], "M8[D]"),
    ],
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """A small one that holds every kind of value."""
    chunks = map(memory_of, files.parts_of(TREE))
    return files.write_chunks(tmp_path, "checkpoints/one", chunks, resource=1, parent=None)


def test_every_damaged_byte_is_a_checkpoint_error(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Also where the digest is that of the damaged file: then it is read, or refused in the same way."""
    path = tmp_path / checkpoint.uri
    good = path.read_bytes()
    assert files.load(tmp_path, checkpoint)["trial"] == 1
    decoded = 0
    for place in range(len(good)):
        damaged = bytearray(good)
        damaged[place] ^= 0x20
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="is corrupt: its BLAKE3"):
            files.load(tmp_path, checkpoint)
        try:
            files.load(tmp_path, _digested(checkpoint, bytes(damaged)))
            decoded += 1
        except CheckpointError:
            pass
    assert 0 < decoded < len(good)


def _digested(checkpoint: Checkpoint, content: bytes) -> Checkpoint:
    told = f"{files.BLAKE3}{blake3(content).hexdigest()}"
    return msgspec.structs.replace(checkpoint, digest=told, size=len(content))


CRAFTED: list[Any] = [
    [], None, 7, {"scalar": "<f4", "hex": ""}, {"scalar": "(", "hex": "00"}, {"scalar": "O", "hex": "00"},
    {"float": "00"}, {"float": 1}, {"int": "zz"}, {"int": 5}, {"bytes": "="}, {"size": ["a"]}, {"size": {}},
    {"array": "none"}, {"tensor": "none"}, {"array": "block", "dtype": "O", "shape": [1]},
    {"array": "block", "dtype": "<f8,", "shape": [2]}, {"array": "block", "dtype": "<f8", "shape": [5]},
    {"tensor": "block", "dtype": "float64", "shape": [7]}, {"tensor": "block", "dtype": "nn", "shape": [1]},
    {"tensor": "block", "dtype": "no_dtype", "shape": [1]}, {"tensor": "block", "dtype": "float64", "shape": [2**80]},
    {"items": [[1]]}, {"items": [[{"dict": {}}, 1]]}, {"counter": [["a", "b", "c"]]}, {"ordered": []}, {"new": 1}, {},
    {"__reduce__": ["os.system", "true"], "kind": "object", "type": "os.system", "args": ["true"]},
]  # fmt: skip

READ: list[Any] = [[], None, 7, {"bytes": "="}, {"size": {}}, {"array": "block", "dtype": "<f8,", "shape": [2]}]


def test_a_tree_that_is_too_deep_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    content = _crafted({"tuple": json.loads("[" * 300 + "]" * 300)})
    (tmp_path / checkpoint.uri).write_bytes(content)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 250)
    try:
        with pytest.raises(CheckpointError, match="cannot be decoded"):
            files.load(tmp_path, _digested(checkpoint, content))
    finally:
        sys.setrecursionlimit(limit)


def _crafted(tree: Any) -> bytes:
    """A checkpoint file whose tree says so, with one block of 16 bytes."""
    header = {"hpo_format": "1", "hpo_tree": json.dumps(tree)}
    block = {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}
    body = json.dumps({"__metadata__": header, "block": block}).encode()
    return len(body).to_bytes(8, "little") + body + bytes(16)


@pytest.mark.parametrize("tree", CRAFTED, ids=lambda tree: repr(tree)[:60])
def test_a_made_up_tree_is_read_or_refused(tree: Any, checkpoint: Checkpoint, tmp_path: Path) -> None:
    content = _crafted(tree)
    (tmp_path / checkpoint.uri).write_bytes(content)
    if tree in READ:
        files.load(tmp_path, _digested(checkpoint, content))
        return
    with pytest.raises(CheckpointError, match="cannot be decoded|unknown tag"):
        files.load(tmp_path, _digested(checkpoint, content))
    with pytest.raises(CheckpointError, match="is corrupt"):
        files.load(tmp_path, msgspec.structs.replace(checkpoint, size=len(content)))


BLOCKS: list[Any] = [
    {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], "more": 1},
    {"dtype": "F32", "shape": [4], "data_offsets": [0]},
    {"dtype": "F32", "shape": [4], "data_offsets": "ab"},
    {"dtype": "F32", "shape": 4, "data_offsets": [0, 16]},
    {"dtype": "F32", "shape": [True, 4], "data_offsets": [0, 16]},
    {"dtype": "U8", "shape": [16], "data_offsets": [8, 24]},
    {"dtype": "U8", "shape": [8], "data_offsets": [-8, 0]},
    {"dtype": "U8", "shape": [16], "data_offsets": [0, 15]},
    {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]},
    {"dtype": "F32", "shape": [2**70], "data_offsets": [0, 2**72]},
    {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]},
    {"dtype": "F99", "shape": [16], "data_offsets": [0, 16]},
    {"dtype": ["F32"], "shape": [4], "data_offsets": [0, 16]},
    {"dtype": "F32", "shape": [1] * 100, "data_offsets": [0, 4]},
    [], None, "block",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["array", "tensor"])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: json.dumps(block)[:60])
def test_a_made_up_block_is_refused(kind: str, block: Any, checkpoint: Checkpoint, tmp_path: Path) -> None:
    header = {"hpo_format": "1", "hpo_tree": json.dumps({kind: "block"})}
    body = json.dumps({"__metadata__": header, "block": block}).encode()
    content = len(body).to_bytes(8, "little") + body + bytes(16)
    (tmp_path / checkpoint.uri).write_bytes(content)
    if block == BLOCKS[0] or (kind == "tensor" and block == BLOCKS[-4]):
        assert len(files.load(tmp_path, _digested(checkpoint, content))) in (1, 4)
        return
    with pytest.raises(CheckpointError, match="cannot be decoded"):
        files.load(tmp_path, _digested(checkpoint, content))


def test_weights_of_a_damaged_file_are_refused_too(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Nothing but these errors, whichever byte is another one; the digest was compared before."""
    path = tmp_path / checkpoint.uri
    good = path.read_bytes()
    for place in range(8 + int.from_bytes(good[:8], "little")):
        damaged = bytearray(good)
        damaged[place] ^= 0x01
        path.write_bytes(damaged)
        try:
            files.mapped(path)
        except CheckpointError as error:
            assert "was not written by this package" in str(error)


def test_states_that_ranks_exchange_are_refused_in_the_same_way() -> None:
    good = tree_bytes(TREE)
    for place in range(0, len(good), 3):
        damaged = bytearray(good)
        damaged[place] ^= 0x01
        try:
            tree_of(bytes(damaged))
        except CheckpointError as error:
            assert "cannot be decoded" in str(error) or "unknown tag" in str(error)


class Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def zipped(pickled: bytes) -> bytes:
    """As ``torch.save`` writes it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
    return file.getvalue()


@pytest.mark.parametrize("written", [bytes, zipped])
def test_a_pickle_is_refused_and_runs_nothing(written: Any, checkpoint: Checkpoint, tmp_path: Path) -> None:
    pickled = pickle.dumps(Payload(mark := tmp_path / "executed"))
    pickle.loads(pickled)
    mark.unlink()  # the payload works
    content = written(pickled)
    (tmp_path / checkpoint.uri).write_bytes(content)
    with pytest.raises(CheckpointError):
        files.load(tmp_path, _digested(checkpoint, content))
    assert not mark.exists()


@pytest.mark.parametrize("names", ["a", "ab"])
def test_blocks_that_share_bytes_are_refused(names: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    header = {"hpo_format": "1", "hpo_tree": json.dumps({"dict": {name: {"array": name} for name in names}})}
    block = {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}
    body = json.dumps({"__metadata__": header} | dict.fromkeys(names, block)).encode()
    content = len(body).to_bytes(8, "little") + body + bytes(range(16))
    (tmp_path / checkpoint.uri).write_bytes(content)
    if names == "a":
        assert files.load(tmp_path, _digested(checkpoint, content))["a"].tolist() == list(range(16))
        return
    with pytest.raises(CheckpointError):
        files.load(tmp_path, _digested(checkpoint, content))
