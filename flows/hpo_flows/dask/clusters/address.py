"""Cluster kind ``address``: a Dask scheduler that runs already."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import distributed
from distributed.security import Security

from hpo_core.model.errors import SpecError
from hpo_core.spec import AddressClusterSpec
from hpo_flows.dask.clusters.kind import ClusterError, ClusterKind

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


CONNECT_SECONDS = 30.0


class RunningScheduler(ClusterKind[AddressClusterSpec]):
    """Joins a scheduler; scheduler and workers belong to others and are never ended or replaced."""

    def create(self) -> Any:
        """Nothing is started."""
        return None

    def connect(self) -> Any:
        """Connect to the scheduler, with certificates behind ``tls://``.

        Raises:
            ClusterError: no scheduler answers.
            SpecError: the certificates cannot be used.
        """
        security = security_of(self.settings)
        try:
            return distributed.Client(  # type: ignore[no-untyped-call]
                self.settings.address, timeout=CONNECT_SECONDS, set_as_default=False, security=security
            )
        except (OSError, TimeoutError) as error:
            cure = "" if security is None else ", or the certificates"
            raise ClusterError(
                f"No Dask scheduler answers at {self.settings.address} ({error}). Start one with `dask scheduler` and "
                f"`dask worker`, or mend cluster.address in the study{cure}."
            ) from error

    @property
    def dashboard(self) -> bool:
        """Whoever started the scheduler decides; its address is shown."""
        return True

    def no_workers(self, seconds: float) -> ClusterError:
        """The error for a scheduler without any worker after so many seconds."""
        return ClusterError(
            f"The Dask scheduler at {self.settings.address} has no workers after {seconds:.0f} s; start some "
            "with `dask worker`."
        )
