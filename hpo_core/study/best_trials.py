"""The results of a study that count as its best."""

from __future__ import annotations

from hpo_core.spec import StudySpec
from hpo_core.state import Incumbent, StudyState


class BestTrials:
    """The part of :class:`~hpo_core.study.study.Study` that names its best results."""

    spec: StudySpec
    state: StudyState

    @property
    def best(self) -> Incumbent | None:
        """The incumbent: best finite loss, of all rungs or of the highest one, as ``best_of`` of the study says."""
        return self.state.incumbent

    @property
    def best_of_all_rungs(self) -> Incumbent | None:
        """Best finite loss over the results of all rungs (ASHA 3.3: intermediate losses count)."""
        return self.state.best_of_all.incumbent

    @property
    def best_of_highest_rung(self) -> Incumbent | None:
        """Best finite loss among the results at the largest resource that has one.

        A smaller sample, compared at equal training: the better choice where the winner is trained on. Further
        training of a trial (:meth:`train_further`) counts at the rung that it had reached by the search.
        """
        return self.state.best_of_highest_rung.incumbent

    @property
    def front(self) -> list[Incumbent]:
        """The Pareto front by ``best_of``, ascending by loss; with one objective the incumbent alone."""
        return list(self.state.front)

    def metric_value(self, loss: float) -> float:
        """A loss as the user's metric (``mode: max`` flipped back)."""
        return loss * self.spec.metric.sign
