"""A checkpoint is written whole or not at all, and verified before it is used."""

import os
import subprocess
from pathlib import Path

import pytest
import torch

from hpo_core.checkpoints import files as checkpoints
from hpo_core.model.errors import StorageError
from hpo_core.model.trial import Checkpoint
from tests.checkpoints.saving import save

TREE = {"weights": torch.arange(1000.0)}


@pytest.fixture
def saved(tmp_path):
    return save(tmp_path, "checkpoints/t/a.safetensors", TREE, resource=3, parent="b")


def test_a_reference_has_path_digest_size_and_resource(saved, tmp_path):
    assert (saved.resource, saved.parent) == (3, "b")
    assert saved.size == (tmp_path / saved.uri).stat().st_size
    assert [path.name for path in (tmp_path / saved.uri).parent.iterdir()] == ["a.safetensors"]


def test_a_url_whose_package_is_missing_is_reported(saved, tmp_path):
    with pytest.raises(StorageError, match="gcsfs"):
        checkpoints.load(tmp_path, Checkpoint("gs://bucket/a", saved.digest, 3, saved.size), "gs://bucket")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_is_a_storage_error(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"this machine forbids mounts: {mounted.stderr.strip()}")
    try:
        with pytest.raises(StorageError, match=r"No space left on device.*Free space"):
            save(tmp_path, "checkpoints/t/a", {"w": torch.zeros(1_000_000)}, resource=1)
        assert list(Path(tmp_path, "checkpoints/t").iterdir()) == []
        small = save(tmp_path, "checkpoints/t/a", {"w": torch.zeros(10)}, resource=1)
        assert checkpoints.load(tmp_path, small)["w"].numel() == 10
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
