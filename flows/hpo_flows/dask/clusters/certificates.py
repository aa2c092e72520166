"""Certificates of the clusters that studies start."""

from __future__ import annotations

import datetime
from typing import Any

from distributed.security import Security

BEHIND = datetime.timedelta(days=1)
"""How far the clock of a computer may be behind: Dask's own certificates begin at the moment they are made."""
VALID = datetime.timedelta(days=365)


def new_security() -> Any:
    """``distributed.Security`` of one cluster: a certificate that is its own authority, and its key, in memory only.

    Like ``Security.temporary()``, and valid from a day before.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    made = Security.temporary()  # type: ignore[no-untyped-call]
    key = serialization.load_pem_private_key(made.tls_client_key.encode(), None)
    first = x509.load_pem_x509_certificate(made.tls_client_cert.encode())
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        first.issuer, first.subject, first.public_key(), first.serial_number, now - BEHIND, now + VALID,
        list(first.extensions),
    )  # fmt: skip
    text = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()  # type: ignore[arg-type]
    made.tls_ca_file = made.tls_client_cert = made.tls_scheduler_cert = made.tls_worker_cert = text
    return made
