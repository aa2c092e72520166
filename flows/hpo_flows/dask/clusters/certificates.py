"""Certificates for a Dask scheduler that runs already, behind ``tls://``."""

from __future__ import annotations

import os
from pathlib import Path

from distributed.security import Security

from hpo_core.model.errors import SpecError
from hpo_core.spec import AddressClusterSpec

_NAMES = {"tls_ca_file": "tls_ca_file", "tls_cert": "tls_client_cert", "tls_key": "tls_client_key"}


def security_of(cluster: AddressClusterSpec) -> Security | None:
    """What a client needs to connect; None without TLS.

    Raises:
        SpecError: a file cannot be read, or neither the study nor Dask's configuration names certificates.
    """
    if not cluster.address.startswith("tls://"):
        return None
    for name, path in cluster.tls_files.items():
        if not Path(path).is_absolute():
            raise SpecError(
                f"cluster.{name} = {path!r} is relative, and the study may be resumed from another folder; write the "
                "path in full (in a study file it may be relative to the file)."
            )
        if not os.access(path, os.R_OK):
            raise SpecError(f"cluster.{name} = {path!r} cannot be read here; mend the path or its permissions.")
    files = {_NAMES[name]: path for name, path in cluster.tls_files.items()}
    try:
        security = Security(require_encryption=True, **files)  # type: ignore[no-untyped-call]
        context = security.get_connection_args("client")["ssl_context"]  # type: ignore[no-untyped-call]
    except OSError as error:  # ssl.SSLError among them
        raise SpecError(f"The certificates for {cluster.address} cannot be used ({error}); mend the files.") from None
    if context is None:
        raise SpecError(
            f"cluster.address = {cluster.address!r} needs certificates; give cluster.tls_ca_file, tls_cert and "
            "tls_key, or set distributed.comm.tls in Dask's configuration."
        )
    return security
