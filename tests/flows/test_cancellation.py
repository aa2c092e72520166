"""What is to be cancelled on Dask workers reaches each of them, one call at a time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpo_flows.dask.rank_tasks import Cancellation

WORKER = "tcp://worker:1"


@pytest.mark.parametrize("steps", [0, 1, 2, 4, 8])
def test_a_request_while_a_call_ends_is_sent_too(steps: int) -> None:
    """At whatever step of the loop it comes: between a call's end and what follows from it, too."""
    sent: list[tuple[int, int]] = []

    async def scenario() -> None:
        async def later(left: int) -> None:
            for _ in range(left):
                await asyncio.sleep(0)
            await cancellation._send({(1, 0)})

        async def run(_function: Any, _folder: str, attempts: list[tuple[int, int]], **_options: Any) -> None:
            if not sent:
                tasks.append(asyncio.ensure_future(later(steps)))
            sent.extend(attempts)

        tasks: list[asyncio.Task[None]] = []
        connection = SimpleNamespace(client=SimpleNamespace(run=run), is_open=True)
        watch = SimpleNamespace(well=lambda: [WORKER])
        cancellation = Cancellation(cast(Any, connection), cast(Any, watch), folder="study", timeout=5.0)
        tasks.append(asyncio.ensure_future(cancellation._send({(0, 0)})))
        for _ in range(50):
            await asyncio.sleep(0)

    asyncio.run(scenario())
    assert sent == [(0, 0), (1, 0)]
