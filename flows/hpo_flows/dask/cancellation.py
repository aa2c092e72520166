"""Cancels running attempts on Dask workers, one call at a time to each."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Sequence

from hpo_flows.dask.lost_workers import ClusterWatch
from hpo_flows.dask.on_worker import cancel_attempts
from hpo_flows.dask.start_up import Connection


class Cancellation:
    """Sends the attempts to cancel to every worker; a worker that does not answer is not called again and again.

    Args:
        connection: to the scheduler.
        watch: of its workers.
        folder: of the study.
        timeout: seconds that a worker may take to answer.
    """

    def __init__(self, connection: Connection, watch: ClusterWatch, *, folder: str, timeout: float) -> None:
        self._connection = connection
        self._watch = watch
        self._folder = folder
        self._timeout = timeout
        self._waiting: dict[str, set[tuple[int, ...]]] = {}
        """By worker: attempts that it was not sent yet. On the client's loop only."""
        self._calls: dict[str, asyncio.Task[None]] = {}

    def request(self, attempts: Sequence[tuple[int, ...]]) -> None:
        """Cancel these attempts (trial, attempt), or units of them (trial, attempt, number); returns at once."""
        if attempts and self._connection.is_open:
            self._connection.client.loop.add_callback(self._send, set(attempts))

    # On the client's loop.

    def _send(self, attempts: set[tuple[int, ...]]) -> None:
        for address in self._watch.well():
            self._waiting.setdefault(address, set()).update(attempts)
            if address not in self._calls:
                self._start(address)

    def _start(self, address: str) -> None:
        call = self._calls[address] = asyncio.ensure_future(self._call(address))
        call.add_done_callback(functools.partial(self._call_ended, address))

    def _call_ended(self, address: str, call: asyncio.Task[None]) -> None:
        self._calls.pop(address, None)
        if address in self._waiting and not call.cancelled():  # asked for between the call's end and here
            self._start(address)

    async def _call(self, address: str) -> None:
        while attempts := self._waiting.pop(address, None):
            with contextlib.suppress(Exception):  # what cannot be reached cannot be cancelled
                call = self._connection.client.run(
                    cancel_attempts, self._folder, sorted(attempts), workers=[address], on_error="ignore"
                )
                await asyncio.wait_for(call, self._timeout)
