"""What a person asks of a study: more configurations, one of their own, longer training, an end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import msgspec

from hpo_core.model.errors import HpoError
from hpo_core.model.events import (
    AbandonRequested,
    ConfigurationRequested,
    Entry,
    ExtensionRequested,
    Stimulus,
    StopRequested,
    TrainingRequested,
)
from hpo_core.model.trial import Job
from hpo_core.search.method import SearchMethod
from hpo_core.spec import StudySpec
from hpo_core.state import StudyState
from hpo_core.study.enqueueing import checked_configuration, is_known
from hpo_core.study.further_training import check_training
from hpo_core.study.job_grants import Grants


class PersonRequests(ABC):
    """The part of :class:`~hpo_core.study.study.Study` that checks what a person asks, and records it."""

    name: str
    spec: StudySpec
    state: StudyState
    method: SearchMethod
    _grants: Grants

    @abstractmethod
    def _take(self, stimulus: Stimulus) -> Entry:
        """Decide and record what follows from a stimulus."""

    @abstractmethod
    def _granted(self, entry: Entry) -> list[Job]:
        """The jobs that an entry grants."""

    def extend(self, configs: int) -> list[Job]:
        """Ask for so many more configurations."""
        if configs < 1:
            raise HpoError(f"extend(configs={configs}): give at least 1 further configuration.")
        if refusal := self.refuse_extension():
            raise HpoError(refusal)
        return self._granted(self._take(ExtensionRequested(configs)))

    def enqueue(
        self, params: Mapping[str, Any], *, skip_if_exists: bool = False, request: str | None = None
    ) -> list[Job]:
        """Have a configuration tried next: the next one that the search samples, after those enqueued before.

        It counts as one of the configurations of the study, but in a grid, which gets one more. Where the search has
        sampled all it wants, the queue waits for :meth:`extend`.

        Args:
            params: values by name; those left out are the sampler's to add.
            skip_if_exists: do nothing where a trial, or one in the queue, has these values already.
            request: name of the request that another process made for it (``hpo enqueue``).

        Returns:
            Jobs granted in turn (see :meth:`set_capacity`).

        Raises:
            HpoError: the study takes no configurations (a rerun), or the space does not take these values.
        """
        if self.state.exhausted:
            raise HpoError(f"{self.refuse_extension()}")
        given = checked_configuration(self.spec, params)
        if skip_if_exists and is_known(self.state, given):
            return []
        return self._granted(self._take(ConfigurationRequested(given, request or msgspec.UNSET)))

    def refuse_extension(self) -> str | None:
        """Why the study takes no more configurations; None: it takes them."""
        if self.state.exhausted:
            return (
                f"Study {self.name!r}: {self.spec.sampler.name} has no further configurations; all "
                f"{len(self.state.trials)} were tried. Start a new study with a larger space or another sampler."
            )
        return self.spec.search.refuse_extension(self.name, self.method)

    def train_further(self, trial: int | None = None, to: int = 0) -> list[Job]:
        """Train one trial on, beyond the search and its maximum resource, once that is finished or halted.

        The job goes on from the trial's newest checkpoint; where none was kept, from the start. No search method
        ranks its result and no stop rule counts it, but it can be the incumbent. A halted search stays halted.

        Args:
            trial: its number; None: the best trial.
            to: units of training in all, those behind it included.

        Raises:
            HpoError: what :meth:`trial_to_train` says.
        """
        return self._granted(self._take(TrainingRequested(self.trial_to_train(trial, to), to)))

    def trial_to_train(self, trial: int | None, to: int) -> int:
        """The trial that :meth:`train_further` would train; records nothing.

        Raises:
            HpoError: there is no such trial, it has no finite result, it was trained so far already, or the search
                is not over yet.
        """
        return check_training(self.state, self.name, trial, to, searching=self._grants.searching)

    def stop(self, reason: str) -> None:
        """Grant no further jobs until the study is recovered or extended."""
        self._take(StopRequested(reason))

    def abandon(self, trial: int) -> None:
        """Give a trial up, whether it runs, waits to be tried again, or stands at a rung.

        Grants nothing by itself; whoever drives the study goes on as usual.

        Raises:
            HpoError: there is no such trial, or nothing is left of it to give up.
        """
        trials = self.state.trials
        if not 0 <= trial < len(trials):
            known = f"it has trials 0 to {len(trials) - 1}" if trials else "it has none yet"
            raise HpoError(f"Study {self.name!r} has no trial {trial}; {known}.")
        record = trials[trial]
        if record.abandoned is not None or record.stopped is not None:
            raise HpoError(f"Study {self.name!r}: trial {trial} is {record.status} already.")
        goes_on = record.running or record.waiting or trial in self.state.extended
        if not goes_on and trial in self.method.ruled_out:
            raise HpoError(f"Study {self.name!r}: trial {trial} will not go on anyway; there is nothing to give up.")
        self._take(AbandonRequested(trial))
