"""RunParts: the executor, placer and observers of one run, which each feature of a study adds to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpo_core.execution.executor import Executor
from hpo_core.execution.loop import Observer
from hpo_core.journal.protocol import Journal, Owner
from hpo_core.model.trial import Job
from hpo_core.placement.placer import Placer, UsageMeter
from hpo_core.study import Study


class NewsTeller(Observer):
    """Observer that tells a person the news of the cluster, or of the placer, as time passes."""

    def __init__(self, news: Callable[[], str], tell: Callable[[str], None]) -> None:
        self._news, self._tell = news, tell

    def on_tick(self) -> None:
        self._tell(self._news())


@dataclass(kw_only=True)
class RunParts:
    """The parts of one run. A feature is a function of them that adds its own where the study names it."""

    study: Study
    folder: Path
    """The study's folder."""
    journal: Journal
    owner: Owner
    """The controller."""
    tell: Callable[[str], None]
    """Shows a person a line."""
    executor: Executor
    meter: UsageMeter | None = None
    """Measures running jobs."""
    threads: Callable[[], Mapping[str, int]]
    """Slots of each worker, by its name."""
    placer: Placer = field(default_factory=Placer)
    observers: list[Observer] = field(default_factory=list)
    on_unit: Callable[[Callable[[Job, int], None]], None] | None = None
    """Takes a function to call as a unit of a job begins, with its epoch; from any thread, so it must not wait.
    None: jobs have no units."""
    after: list[Callable[[], None]] = field(default_factory=list)
    """Functions to call once the loop has ended without an error."""
    closing: list[Callable[[], None]] = field(default_factory=list)
    """Functions to call in the end, however it comes."""

    def news(self, news: Callable[[], str]) -> None:
        """Tell a person what this function says as time passes."""
        self.observers.append(NewsTeller(news, self.tell))

    def close(self) -> None:
        for function in self.closing:
            function()
