"""Cluster kind ``address``: a Dask scheduler that runs already."""

from __future__ import annotations

from typing import Any

import distributed
from distributed.security import Security

from hpo_core.model.errors import SpecError
from hpo_core.spec.sections import AddressClusterSpec
from hpo_flows.dask.clusters.kind import ClusterError, ClusterKind

CONNECT_SECONDS = 30.0


def security_of(cluster: AddressClusterSpec) -> Security | None:
    """Certificates of a client, from Dask's configuration; None without TLS.

    Raises:
        SpecError: the configuration names no certificates, or their files cannot be used.
    """
    if not cluster.address.startswith("tls://"):
        return None
    try:
        security = Security(require_encryption=True)  # type: ignore[no-untyped-call]
        context = security.get_connection_args("client")["ssl_context"]  # type: ignore[no-untyped-call]
    except OSError as error:  # ssl.SSLError among them
        raise SpecError(f"The certificates for {cluster.address} cannot be used ({error}); mend the files.") from None
    if context is None:
        raise SpecError(
            f"cluster.address = {cluster.address!r} needs certificates; name their files in Dask's configuration: "
            "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT and ..._CLIENT__KEY, or "
            "distributed.comm.tls in ~/.config/dask/*.yaml."
        )
    return security


class RunningScheduler(ClusterKind[AddressClusterSpec]):
    """Joins a scheduler; scheduler and workers belong to others and are never ended or replaced."""

    is_ours = False
    _news = ""

    def create(self) -> Any:
        return None

    def connect(self) -> Any:
        """Connect to the scheduler, with certificates behind ``tls://``.

        Raises:
            ClusterError: no scheduler answers.
            SpecError: the certificates cannot be used.
        """
        security = self.security or security_of(self.settings)
        self._news = (
            f"waiting for the Dask scheduler at {self.settings.address}, for {CONNECT_SECONDS:.0f} s at most ..."
        )
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

    def news(self) -> str:
        news, self._news = self._news, ""
        return news

    @property
    def dashboard(self) -> bool:
        return True

    def no_workers(self, seconds: float) -> ClusterError:
        return ClusterError(
            f"The Dask scheduler at {self.settings.address} has no workers after {seconds:.0f} s; start some "
            "with `dask worker`."
        )
