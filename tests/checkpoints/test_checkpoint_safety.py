"""Loading a checkpoint executes nothing, whoever wrote the file: digest and size are right, the content is hostile."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hpo_core.checkpoints import files as checkpoints
from hpo_core.model.errors import CheckpointError
from hpo_core.model.trial import Checkpoint


class Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def pickled(mark: Path) -> bytes:
    return pickle.dumps(Payload(mark))


def zipped(mark: Path) -> bytes:
    """As ``torch.save`` writes it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickled(mark))
    return file.getvalue()


def described(mark: Path) -> bytes:
    """Our own format, with a description that names things to call."""
    call = {
        "__reduce__": ["os.system", f"touch {mark}"],
        "kind": "object",
        "type": "os.system",
        "args": [f"touch {mark}"],
    }
    header = json.dumps({"__metadata__": {"hpo_format": "1", "hpo_tree": json.dumps(call)}}).encode()
    return len(header).to_bytes(8, "little") + header


def _with_blocks(**offsets: list[int]) -> bytes:
    """Our own format with bytes ``0`` to ``7`` as the data of blocks at these places, each of eight items."""
    blocks = {name: {"dtype": "U8", "shape": [8], "data_offsets": each} for name, each in offsets.items()}
    tree = json.dumps({"dict": {name: {"array": name} for name in blocks}})
    header = json.dumps({"__metadata__": {"hpo_format": "1", "hpo_tree": tree}, **blocks}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(range(8))


def overlapping(_: Path) -> bytes:
    """Two blocks share bytes."""
    return _with_blocks(a=[0, 8], b=[0, 8])


def huge(_: Path) -> bytes:
    """The length of the header is larger than any file."""
    return b"\xff" * 8 + b"{}"


def test_blocks_within_the_file_are_read(tmp_path: Path) -> None:
    """What the refused files below are made of is no reason to refuse."""
    data = _with_blocks(a=[0, 8])
    (tmp_path / "good.safetensors").write_bytes(data)
    reference = Checkpoint("good.safetensors", hashlib.sha256(data).hexdigest(), 1, len(data))
    assert checkpoints.load(tmp_path, reference)["a"].tolist() == list(range(8))


@pytest.mark.parametrize("content", [pickled, zipped, described, overlapping, huge], ids=lambda each: each.__name__)
def test_hostile_files_are_refused_and_run_nothing(tmp_path: Path, content: Any) -> None:
    mark = tmp_path / "executed"
    data = content(mark)
    pickle.loads(pickled(tmp_path / "the-payload-works"))
    assert (tmp_path / "the-payload-works").exists()
    (tmp_path / "bad.safetensors").write_bytes(data)
    reference = Checkpoint("bad.safetensors", hashlib.sha256(data).hexdigest(), 1, len(data))
    with pytest.raises(CheckpointError):
        checkpoints.load(tmp_path, reference)
    assert not mark.exists()
