"""A client of a Dask scheduler whose calls have time limits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from hpo_flows.dask.clusters.kind import ClusterError

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
