"""The client of a Dask cluster, asked with time limits: no call waits for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from hpo_flows.dask.clusters.kind import ClusterError
from hpo_flows.dask.monitor import ClusterWatch

CALL_SECONDS = 30.0


class Connection:
    """A client of the study's scheduler.

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
        """Whether the client still has its connection to the scheduler."""
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

    def call(self, ask: Callable[[], Awaitable[Any]], whom: str, seconds: float = CALL_SECONDS) -> Any:
        """Wait for one answer; from any thread but the client's loop.

        Raises:
            ClusterError: there is none within these seconds.
        """

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

    def run_on_scheduler(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function on the scheduler.

        Raises:
            ClusterError: it does not answer in time.
        """
        return self.call(lambda: self.client.run_on_scheduler(function, *arguments), "the scheduler")

    def run_on_each(
        self, watch: ClusterWatch, function: Callable[..., Any], *arguments: Any, seconds: float
    ) -> dict[str, Any]:
        """Run a function on every worker that is well; what came back in time, errors as values."""
        if watch.scheduler_is_unresponsive() or not self.is_open:
            return {}

        async def on_one(address: str) -> tuple[str, Any]:
            try:
                found = await asyncio.wait_for(
                    self.client.run(function, *arguments, workers=[address], on_error="return"), seconds
                )
                return address, found.get(address)
            except Exception as error:
                return address, error

        async def on_all() -> dict[str, Any]:
            return dict(await asyncio.gather(*(on_one(address) for address in watch.well())))

        try:
            found: dict[str, Any] = self.call(on_all, "the workers", seconds + 5.0)
        except ClusterError as error:
            logging.getLogger(__name__).debug("%s", error)
            return {}
        return found
