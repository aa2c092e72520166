"""A list of configurations, for studies that are only looked at."""

from __future__ import annotations

from typing import Any

from hpo_core.model.events import Event
from hpo_core.model.trial import Params


class RecordedSampler:
    """Trial ``n`` gets the parameters ``n``."""

    def __init__(self, params: list[dict[str, Any]]) -> None:
        self._params = params

    def propose(self, number: int, given: Params | None = None) -> Params:
        return dict(self._params[number])

    def apply(self, event: Event) -> None:
        """A record learns nothing."""
