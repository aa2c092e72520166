"""What happens to a cluster while a study runs."""

from __future__ import annotations

from collections.abc import Callable

from hpo_core.model.trial import Job, Report


class ClusterNews:
    """Observer that has the news of the cluster told.

    Args:
        tell: tells what is new, if anything.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def on_report(self, report: Report, granted: list[Job]) -> None:
        """A report is no news of the cluster."""

    def on_tick(self) -> None:
        """Time passed."""
        self._tell()

    def close(self) -> None:
        """Nothing is open."""
