"""Dask schedulers behind tls://: a study shows its certificate; deployments can require that there is one."""

from __future__ import annotations

from pathlib import Path

import dask
import pytest

from hpo_core.model.errors import SpecError
from hpo_core.spec.sections import AddressClusterSpec
from hpo_flows.dask.clusters.address import security_of
from hpo_flows.dask.clusters.kind import new_security


def dask_configuration(files: dict[str, str]) -> dict[str, str]:
    names = ("ca-file", "client.cert", "client.key")
    return {f"distributed.comm.tls.{name}": path for name, path in zip(names, files.values(), strict=True)}


def certificate(folder: Path) -> dict[str, str]:
    """A certificate that is its own authority, and its key, as files."""
    made = new_security()
    folder.mkdir()
    texts = {"tls_ca_file": made.tls_ca_file, "tls_cert": made.tls_client_cert, "tls_key": made.tls_client_key}
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    return {name: str(folder / name) for name in texts}


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    files = certificate(tmp_path / "keys")
    cluster = AddressClusterSpec(address="tls://h:1")
    with pytest.raises(SpecError, match="needs certificates"):
        security_of(cluster)
    with dask.config.set(dask_configuration(files)):
        assert security_of(cluster) is not None
        Path(files["tls_key"]).unlink()
        with pytest.raises(SpecError, match="certificates for tls://h:1 cannot be used"):
            security_of(cluster)
