"""StudyParts: everything that a study's facts are folded into."""

from __future__ import annotations

from hpo_core.checkpoints.retention import Budget, LiveCheckpoints
from hpo_core.model.events import Event, StudyReopened, concerns_search
from hpo_core.samplers.sampler import Sampler
from hpo_core.search.method import SearchMethod
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import create_method, create_sampler
from hpo_core.state import StudyState
from hpo_core.study.stop_rules import StopRules


class StudyParts:
    """State, search method, sampler, stop rules and checkpoints of one study; decides nothing."""

    def __init__(self, spec: StudySpec, sampler: Sampler | None = None) -> None:
        self.spec = spec
        self.state = StudyState()
        self.method: SearchMethod = create_method(spec)
        self.sampler: Sampler = sampler or create_sampler(spec)
        self.rules = StopRules(spec)
        self._checkpoints: LiveCheckpoints | None = None
        limited = spec.checkpoints.max_bytes is not None or spec.checkpoints.max_count is not None
        self.budget = Budget(spec, self.checkpoints) if limited else None
        """Limits on the checkpoints; None: there are none."""

    @property
    def checkpoints(self) -> LiveCheckpoints:
        """Checkpoints that may still be needed; the object follows the study from its first use on."""
        if self._checkpoints is None:
            self._checkpoints = LiveCheckpoints(self.state, self.method)
        return self._checkpoints

    def apply(self, event: Event) -> None:
        """Take over one fact."""
        self.state.apply(event)
        if concerns_search(event):
            self.method.apply(event)
            self.sampler.apply(event)
        if type(event) is StudyReopened:
            self.rules.reopen(self.state)
        if self.budget is not None:
            self.budget.apply(event)
        elif self._checkpoints is not None:
            self._checkpoints.apply(event)

    def check(self) -> None:
        """Assert the invariants of each part."""
        self.state.check()
        self.method.check()
        if self._checkpoints is not None:
            self._checkpoints.check()
        if self.budget is not None:
            self.budget.check()
