import socket
from collections.abc import Iterator

import pytest

from tests.flows.conftest import hpo, make_hpo

__all__ = ["free_port", "hpo", "make_hpo"]


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port on which nobody answers, until a server that sets SO_REUSEADDR begins; no other process is given it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])
