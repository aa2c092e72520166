"""SearchSettings and Outline: what the settings of every search method answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import msgspec
from pydantic import Field, model_validator

from hpo_core.model import limits
from hpo_core.model.arithmetic import Number, as_written
from hpo_core.model.settings import Part
from hpo_core.model.short_text import at_most
from hpo_core.model.space import ParameterType, SearchSpace
from hpo_core.model.trial import Params
from hpo_core.search.method import SearchMethod
from hpo_core.search.rungs import default_min_resource, rung_levels

if TYPE_CHECKING:
    from hpo_core.search.grid import Grid

Resource = Annotated[int, Field(ge=1, le=2**53)]
CONFIGS = "How many configurations the study tries in all; none: until a stop rule ends it."
MAX = "Steps (usually epochs) of a full training: R in the paper."
WHOLE = f"{MAX} Default: one step, which is the whole training of a function that does not loop over trial.steps()."
"""Description of ``max_resource`` where every trial is trained in full."""
MIN = "Steps of the shortest training: r in the paper. Default: so that there are at most five rungs."
ETA = "eta: one in eta goes on to the next rung."


class SearchContext(msgspec.Struct, frozen=True):
    """Everything that a search method gets from its study besides the settings."""

    space: SearchSpace = SearchSpace({})
    seed: int = 0
    objectives: int = 1
    """Number of metrics to optimize."""
    start_with: int = 0
    """Configurations that the study begins with."""


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a search that others ask for instead of comparing the method's name."""

    max_resource: int | None = None
    """Units of a full training; None: no upper limit."""
    endless: bool = False
    """True if only a stop rule ends the search: no number of configurations was given."""
    several_brackets: bool = False
    """True if there are several brackets with rungs of their own from the start."""
    entrances: Mapping[int, int] = {}
    """Where all brackets share their rungs: by bracket, the level at which its trials enter; else empty."""
    stopping: bool = False
    """True if trials go on at once or never, instead of waiting for promotion."""
    barriers: bool = False
    """True if a rung must be complete before its best trials go on."""
    population: int | None = None
    """Members of a population, whose trials go on from each other's weights with changed parameters; None: none."""
    members: bool = False
    """True if each trial belongs to a member of a population, also in a record of one."""
    independent: bool = False
    """True if no job waits for the result of another: the search itself decides nothing by results."""
    own_configurations: bool = False
    """True if the method says itself which configurations are tried, so that no sampler is asked."""

    reduction_factor: float = 2.0
    """About one in so many results of a rung goes on."""

    @property
    def one_shot(self) -> bool:
        """True if all configurations may train at once: none of them is asked for by the result of another.

        So it is where a barrier or a generation waits for all of them (Cerebro, Section 4.2). An asynchronous search
        promotes by the results that are there.
        """
        waits = self.independent or self.barriers or self.population is not None
        return not self.endless and (waits or self.own_configurations)

    @property
    def shared_rungs(self) -> bool:
        return bool(self.entrances)


class SearchProgress(msgspec.Struct, frozen=True):
    """Progress of a search, for its summary."""

    brackets: int
    level: int
    """The highest level that trials may reach now."""
    generation: int
    """Generations that have begun."""


class Record(msgspec.Struct, frozen=True):
    """The record of another study that a search repeats."""

    source: str
    """Name of that study."""
    params: list[dict[str, Any]]


class SearchSettings(Part, ABC):
    """Settings of one search method; ``method`` is its name.

    A subclass sets ``method`` to a ``Literal`` with that default, has a field for each setting, and answers
    :meth:`create` and :meth:`outline`. The other methods have answers that fit most searches.
    """

    title: ClassVar[str]
    """Name of the method in a form."""
    offered: ClassVar[bool] = True
    """True if people choose the method in a form."""

    method: str

    @abstractmethod
    def create(self, context: SearchContext) -> SearchMethod:
        """The search method with these settings, before the first event."""

    @abstractmethod
    def outline(self) -> Outline:
        """Describe the search to the rest of the program; a new object for each call."""

    def summary(self, progress: SearchProgress) -> str:
        return self.method

    def check_sizes(self, space: Mapping[str, ParameterType]) -> None:
        """Refuse a new search that is too large to be planned.

        Raises:
            ValueError: place, value, limit and cure.
        """

    def check_reach(self) -> None:
        """Refuse a new search that never ends, or surely trains nothing to its maximum resource.

        Raises:
            ValueError: value, rule and cure.
        """

    def sampled(self) -> int | None:
        """Least number of configurations that a sampler proposes; None: until a stop rule, or none is asked."""
        return getattr(self, "configs", None)

    def check_objectives(self, objectives: int) -> None:
        """Refuse a number of metrics that the method cannot rank by.

        Raises:
            ValueError: rule and cure.
        """

    def check_space(self, space: SearchSpace, seed: int) -> None:
        """Refuse a search space that the settings do not fit.

        Raises:
            ValueError: place, value, rule and cure.
        """

    def notices(self, extra: int) -> list[str]:
        """Tell what a user should know before the start.

        Args:
            extra: configurations asked for after the study was created.
        """
        return []

    def configurations(self, context: SearchContext) -> Callable[[int], Params] | None:
        """The parameters of a trial by its number, where the method says them itself (see ``own_configurations``)."""
        return None

    def grid(self, space: SearchSpace) -> Grid | None:
        """The points, where the configurations are those of a grid."""
        return None

    def refuse_extension(self, study: str, method: SearchMethod | None = None) -> str | None:
        """Why a study takes no more configurations; None: it takes them.

        Args:
            study: its name, for the message.
            method: the search as it stands; None: not known.
        """
        return None

    def record(self) -> Record | None:
        """The record of another study that it repeats; None: it searches by itself."""
        return None

    def unit_is_whole(self) -> bool:
        """True if one unit is a whole training, because nobody said how many units that has."""
        return False

    def accepts_any_metric(self) -> bool:
        """True if one of several metrics suffices for a result; asked for each result."""
        return False

    def order_of_visits(self, trial: int) -> Mapping[int, Sequence[int]]:
        """By epoch, from 1: in which order a trial's model has to visit the partitions; epochs left out are free."""
        return {}

    def number_of_seed(self, trial: int) -> int:
        """The number that the training seed of a trial follows from."""
        return trial


def check_configs(configs: int | None) -> None:
    if configs is not None:
        at_most("search.configs", configs, limits.CONFIGS, "configurations; lower it")


class HalvingSettings(SearchSettings):
    """Settings of a search that promotes one in eta."""

    if TYPE_CHECKING:  # each search has defaults of its own, in their own place among the settings
        max_resource: int | None
        min_resource: int | None
        reduction_factor: float

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.min_resource is not None and self.max_resource is not None and self.min_resource > self.max_resource:
            raise ValueError(
                f"min_resource = {self.min_resource} is larger than max_resource = {self.max_resource}; "
                "lower the one or raise the other"
            )
        return self

    @property
    def eta(self) -> Number:
        return as_written(self.reduction_factor)

    def levels(self) -> list[int]:
        """Rung levels of the bracket that stops most aggressively; the first alone where there is no upper limit."""
        if self.max_resource is None:
            return [self.min_resource or 1]
        smallest = self.min_resource or default_min_resource(self.max_resource, self.eta)
        return rung_levels(smallest, self.max_resource, self.eta)

    def check_sizes(self, space: Mapping[str, ParameterType]) -> None:
        check_configs(getattr(self, "configs", None))
        at_most("rungs", len(self.levels()), limits.RUNGS, "in one bracket; raise reduction_factor or min_resource")
