"""Calls to a study's Dask scheduler and workers, each with a limit: what does not answer is not waited for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from hpo_core.model.trial import JobKey
from hpo_flows.dask.clusters.kind import ClusterError
from hpo_flows.dask.lost_workers import ClusterWatch
from hpo_flows.dask.on_worker import cancel_attempts

CALL_SECONDS = 30.0


class SchedulerClient:
    """A client of the study's scheduler, asked with time limits: no call waits for ever.

    Args:
        client: of ``distributed``, connected.
        study: name of the study, for messages.
    """

    def __init__(self, client: Any, study: str) -> None:
        self.client = client
        self.address = str(client.scheduler.address)
        self._study = study
        # Dask's client collects messages for 10 ms before it sends them; a job waits for its next one meanwhile.
        client.scheduler_comm.interval = 0.001

    @property
    def is_open(self) -> bool:
        """True if the client still has its connection to the scheduler."""
        return bool(self.client.status == "running")

    def check(self) -> None:
        """Raise where the scheduler is gone.

        Raises:
            ClusterError: the connection is closed.
        """
        if not self.is_open:
            raise ClusterError(
                f"The Dask scheduler at {self.address} is gone. Nothing recorded is lost: start it again, then "
                f"`hpo resume {self._study}`."
            )

    def run_on_scheduler(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function on the scheduler.

        Raises:
            ClusterError: it does not answer in time.
        """
        return self._call(lambda: self.client.run_on_scheduler(function, *arguments), "the scheduler", CALL_SECONDS)

    def run_on_each(
        self, workers: Iterable[str], function: Callable[..., Any], *arguments: Any, seconds: float
    ) -> None:
        """Run a function on these workers; those that do not answer in time are passed over."""

        async def on_one(address: str) -> None:
            run = self.client.run(function, *arguments, workers=[address], on_error="return")
            await asyncio.wait_for(run, seconds)

        async def on_all() -> None:
            await asyncio.gather(*map(on_one, workers), return_exceptions=True)

        if self.is_open:
            with contextlib.suppress(ClusterError):
                self._call(on_all, "the workers", seconds + 5.0)

    def _call(self, ask: Callable[[], Awaitable[Any]], whom: str, seconds: float) -> Any:

        async def limited() -> Any:
            return await asyncio.wait_for(ask(), seconds)

        answer = asyncio.run_coroutine_threadsafe(limited(), self.client.loop.asyncio_loop)
        try:
            return answer.result(seconds + 5.0)
        except (TimeoutError, OSError) as error:
            answer.cancel()
            raise ClusterError(
                f"Dask at {self.address}: no answer from {whom} within {seconds:g} s ({type(error).__name__}). Look "
                "whether it runs; nothing recorded is lost."
            ) from error


class Cancellation:
    """Sends the attempts to cancel to every worker; a worker that does not answer is not called again and again.

    Args:
        connection: to the scheduler.
        watch: of its workers.
        folder: of the study.
        timeout: seconds that a worker may take to answer.
    """

    def __init__(self, connection: SchedulerClient, watch: ClusterWatch, *, folder: str, timeout: float) -> None:
        self._connection = connection
        self._watch = watch
        self._folder = folder
        self._timeout = timeout
        self._waiting: dict[str, set[tuple[int, ...]]] = {}
        """Attempts that a worker was not sent yet, by its address. On the client's loop only."""
        self._called: set[str] = set()
        """Addresses of workers with a call under way."""
        self._over: set[JobKey] = set()

    def request(self, attempts: Sequence[tuple[int, ...]]) -> None:
        """Cancel these attempts (trial, attempt), or units of them (trial, attempt, number); returns at once."""
        if attempts and self._connection.is_open:
            self._connection.client.loop.add_callback(self._send, set(attempts))

    def let_go(self, waiting: Mapping[JobKey, str]) -> None:
        """End processes that wait for an answer; returns at once.

        Args:
            waiting: addresses of their workers, by the attempt that they reported.
        """
        for key, address in waiting.items() if self._connection.is_open else ():
            self._over.add(key)
            self._connection.client.loop.add_callback(self._call, address, {key})

    @property
    def over(self) -> tuple[JobKey, ...]:
        """Attempts that were let go, and whose worker may not know it yet."""
        return tuple(self._over)

    # On the client's loop.

    async def _send(self, attempts: set[tuple[int, ...]]) -> None:
        await asyncio.gather(*(self._call(address, attempts) for address in self._watch.well()))

    async def _call(self, address: str, attempts: set[tuple[int, ...]]) -> None:
        self._waiting.setdefault(address, set()).update(attempts)
        if address in self._called:
            return
        self._called.add(address)
        try:
            while waiting := self._waiting.pop(address, None):
                with contextlib.suppress(Exception):  # what cannot be reached cannot be cancelled
                    call = self._connection.client.run(
                        cancel_attempts, self._folder, sorted(waiting), workers=[address], on_error="ignore"
                    )
                    await asyncio.wait_for(call, self._timeout)
                self._over -= waiting
        finally:
            self._called.discard(address)
