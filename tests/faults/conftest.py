from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.test_real_study import Real
from tests.storage_servers import S3, Sftp, s3, sftp


@pytest.fixture(
    params=["folder", pytest.param("s3", marks=pytest.mark.slow), pytest.param("sftp", marks=pytest.mark.slow)]
)
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Lets every :class:`Real` have its checkpoints there."""
    if request.param == "folder":
        yield "folder"
    elif request.param == "s3":
        with s3():
            monkeypatch.setattr(Real, "url", "s3://bucket/hpo")
            yield "s3"
    else:
        with sftp(tmp_path / "sshd") as server:
            monkeypatch.setattr(Real, "url", f"sftp://127.0.0.1:{server.port}{tmp_path}/served")
            yield "sftp"


@pytest.fixture
def on_s3() -> Iterator[S3]:
    with s3() as server:
        yield server


@pytest.fixture
def on_sftp(tmp_path: Path) -> Iterator[Sftp]:
    with sftp(tmp_path / "sshd") as server:
        yield server
