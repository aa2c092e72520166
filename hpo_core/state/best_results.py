"""The best results of a study, by one of two rules."""

from __future__ import annotations

import msgspec

from hpo_core.model.events import JobCompleted
from hpo_core.model.trial import Metrics
from hpo_core.state.pareto_front import add_to_front
from hpo_core.state.trial_record import is_complete


class Incumbent(msgspec.Struct, frozen=True):
    """Best finite loss by the study's rule (``best_of``): of all rungs (ASHA 3.3), or of the highest one.

    Between equal losses the earlier one stays. With several objectives: a result that no other one dominates.
    """

    trial: int
    resource: int
    loss: float
    metrics: Metrics
    losses: tuple[float, ...] = ()
    """All objectives as losses, where there are several."""


class BestResults:
    """The incumbent and the Pareto front over feasible, finite results.

    Args:
        highest_rung: only those at the largest resource that has one count. Further training of a trial
            (``Study.train_further``) counts at the rung that the trial had reached by the search.
    """

    def __init__(self, *, highest_rung: bool = False) -> None:
        self.incumbent: Incumbent | None = None
        """With several objectives the best in the first one; between equals there, in the next one."""
        self.front: list[Incumbent] = []
        """The Pareto front, ascending by loss; with one objective the incumbent alone.

        A trial may be in it with several results; of equal ones the earliest stays."""
        self._highest_rung = highest_rung
        self._rung = 0

    def take(self, event: JobCompleted, rung: int) -> None:
        """Take note of a finite, feasible result.

        Args:
            rung: units of training that the trial had by the search, with this result.
        """
        assert event.loss is not None
        if event.losses and not is_complete(event):
            return
        if self._highest_rung:
            if rung < self._rung:
                return
            if rung > self._rung:
                self._rung, self.incumbent, self.front = rung, None, []
        if event.losses:
            add_to_front(self.front, Incumbent(event.trial, event.resource, event.loss, event.metrics, event.losses))
            self.incumbent = self.front[0]
        elif self.incumbent is None or event.loss < self.incumbent.loss:
            self.incumbent = Incumbent(event.trial, event.resource, event.loss, event.metrics)
            self.front = [self.incumbent]
