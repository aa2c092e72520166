"""Another local user's process: tries to run code through every address it is given. Prints what worked, as JSON.

``python -m tests.security.intruder MARK ADDRESS ...`` with ADDRESS as ``tcp://HOST:PORT``; MARK is a file that
whoever executes the intruder's code creates, with the port's number added to its name.
"""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import distributed
from distributed.core import rpc
from distributed.protocol.pickle import dumps
from distributed.security import Security

SECONDS = 15.0


def leave_mark(path: str) -> str:
    Path(path).touch()
    return "executed"


async def by_client(address: str, security: Security | None, mark: str) -> object:
    """As anybody with Dask installed would."""
    async with distributed.Client(
        address, security=security, asynchronous=True, set_as_default=False, timeout=SECONDS
    ) as client:
        return await client.run_on_scheduler(leave_mark, mark)


async def by_message(address: str, security: Security | None, mark: str) -> object:
    """The message that workers and nannies take as well, without asking the scheduler."""
    arguments = security.get_connection_args("client") if security is not None else None
    async with rpc(address, connection_args=arguments, timeout=SECONDS) as peer:
        return await peer.run(function=dumps(leave_mark), args=dumps((mark,)), kwargs=dumps({}))


def by_http(port: int) -> str:
    """Whether a web server answers with anything but an error."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=SECONDS) as response:
            return f"HTTP {response.status}"
    except urllib.error.HTTPError as error:
        return f"refused: HTTP {error.code}"
    except Exception as error:
        return f"refused: {type(error).__name__}"


async def tried(attack: Callable[..., Awaitable[object]], *arguments: object) -> str:
    try:
        return f"answered: {await asyncio.wait_for(attack(*arguments), SECONDS)}"
    except BaseException as error:
        return f"refused: {type(error).__name__}"


async def main(mark: str, ports: list[int]) -> dict[str, dict[str, str]]:
    stranger = Security.temporary()
    attempts: dict[tuple[str, str], Awaitable[str]] = {}
    for port in ports:
        for name, attack in (("client", by_client), ("message", by_message)):
            for protocol, security in (("tcp", None), ("tls", stranger)):
                at = f"{protocol}://127.0.0.1:{port}"
                attempts[str(port), f"{name} over {protocol}"] = tried(attack, at, security, f"{mark}.{port}")
        attempts[str(port), "http"] = asyncio.to_thread(by_http, port)
    found: dict[str, dict[str, str]] = {str(port): {} for port in ports}
    for (port_text, name), answer in zip(attempts, await asyncio.gather(*attempts.values()), strict=True):
        found[port_text][name] = answer
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], [int(port) for port in sys.argv[2:]]))))
