"""The search methods' settings: one class each, told apart by ``method``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, model_validator

from hpo_core.model.settings import Part, is_recorded

_Resource = Annotated[int, Field(ge=1, le=2**53)]
_CONFIGS = "How many configurations the study tries in all; none: until a stop rule ends it."
_MAX = "Units (epochs, steps) of a full training, R in the paper."
_MIN = "Units of the shortest training, r; default: at most five rungs."
_ETA = "eta: one in eta goes on to the next rung."


def _check_range(min_resource: int | None, max_resource: int | None) -> None:
    if min_resource is not None and max_resource is not None and min_resource > max_resource:
        raise ValueError(
            f"min_resource = {min_resource} is larger than max_resource = {max_resource}; "
            "lower the one or raise the other"
        )


def _standard(rungs: int) -> list[int]:
    """The three most aggressive brackets, as far as they hold two rungs (ASHA 5.1)."""
    return list(range(max(1, min(3, rungs - 1))))


class AshaSearch(Part):
    """Asynchronous successive halving (Li et al. 2020), promotion or stopping variant, one or more brackets.

    With only ``configs`` and ``max_resource`` given, the paper's production defaults apply (5.1): eta 4, at
    most five rungs, brackets 0, 1 and 2 as far as they hold two rungs. Once ``min_resource`` or
    ``reduction_factor`` is given, bracket 0 alone is the default.
    """

    method: Literal["asha"] = "asha"
    variant: Literal["promotion", "stopping"] = Field(
        default="promotion",
        description="promotion: trials pause at rungs and the best go on; stopping: each goes on at once or never.",
    )
    configs: int | None = Field(default=None, ge=1, description=_CONFIGS)
    max_resource: _Resource | None = Field(default=None, description=_MAX + " None: no upper limit.")
    min_resource: _Resource | None = Field(default=None, description=_MIN)
    reduction_factor: float = Field(default=4, ge=1.1, le=1e6, description=_ETA)
    preset: Literal["aggressive", "standard", "conservative"] | None = Field(
        default=None,
        description="Brackets by name (ASHA 5.1): aggressive, bracket 0 alone; standard, brackets 0, 1 and 2 as far as "
        "they hold two rungs; conservative, all of them.",
    )
    brackets: list[Annotated[int, Field(ge=0, le=100)]] = Field(
        min_length=1,
        description="Early-stopping rates: bracket s starts at rung level s; 0 stops most aggressively. 'all' works.",
    )
    assignment: Literal["budget", "proportional", "loop"] = Field(
        default="budget",
        description="How new configurations go to brackets: equal resource for each; drawn in proportion to the base "
        "rungs of synchronous Hyperband; or looped through in blocks of these sizes.",
    )
    rung_system: Literal["per_bracket", "shared"] = Field(
        default="per_bracket",
        description="Whether brackets have rungs of their own or compete in one system.",
    )
    noise: Annotated[float, Field(gt=0)] | Literal["auto"] | None = Field(
        default=None,
        description="Standard deviation of the metric's noise: while new configurations are left, promote only what "
        "leads by more than sqrt(2) times it; auto: estimated from the learning curves.",
    )

    budget_by: Literal["levels", "powers"] = Field(
        default="levels",
        description="What assignment: budget takes for the cost of a configuration. levels: the bracket's rung levels; "
        "powers: the paper's formula, which assumes that max_resource / min_resource is a power of reduction_factor "
        "(studies begun before there was a choice).",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_it_was(cls, data: Any, info: ValidationInfo) -> Any:
        """A journal that does not say how budgets were reckoned is older than the choice."""
        if is_recorded(info) and isinstance(data, dict) and "budget_by" not in data:
            return data | {"budget_by": "powers"}
        return data

    @model_validator(mode="before")
    @classmethod
    def _choose_brackets(cls, data: Any) -> Any:
        """``brackets`` absent or ``all``, or a preset: resolved once, so that the journal says what was meant."""
        if not isinstance(data, dict):
            return data
        preset = str(data.get("preset"))
        known = preset in ("aggressive", "standard", "conservative")
        open_brackets = data.get("brackets", "default") in ("default", "all", None)
        if not (open_brackets or known):
            return data
        from hpo_core.search.halving.rungs import default_min_resource, rung_levels

        everything = data.get("brackets") == "all"
        smallest, top, eta = data.get("min_resource"), data.get("max_resource"), data.get("reduction_factor", 4)
        numbers = [v for v in (smallest, top, eta) if v is not None]
        if any(isinstance(v, bool) or not isinstance(v, int | float) or v < 1 or v > 2**53 for v in numbers) or not (
            isinstance(eta, int | float) and eta >= 1.1
        ):
            return data | {"brackets": [0]}  # the fields themselves will be refused
        if top is None or (smallest is not None and smallest > top):
            if everything or known:
                word = f"preset = {preset}" if known else "brackets = all"
                raise ValueError(
                    f"{word} needs max_resource, which limits their number; give it, or a list of brackets"
                )
            return data | {"brackets": [0]}
        rungs = len(rung_levels(int(smallest or default_min_resource(int(top), eta)), int(top), eta))
        if known:
            meant = {"aggressive": [0], "standard": _standard(rungs), "conservative": list(range(rungs))}[preset]
            given = list(range(rungs)) if everything else data.get("brackets")
            if given not in (None, "default", meant):
                raise ValueError(f"preset = {preset} means brackets {meant}, and others are given; drop one of the two")
            return data | {"brackets": meant}
        if everything:
            return data | {"brackets": list(range(rungs))}
        standard = smallest is None and "reduction_factor" not in data
        return data | {"brackets": _standard(rungs) if standard else [0]}

    @model_validator(mode="after")
    def _check(self) -> AshaSearch:
        _check_range(self.min_resource, self.max_resource)
        if sorted(set(self.brackets)) != self.brackets:
            raise ValueError(f"brackets = {self.brackets} must ascend, each once")
        if self.max_resource is None:
            if len(self.brackets) > 1 and self.assignment != "proportional":
                raise ValueError(
                    f"assignment = {self.assignment} weighs brackets by their length, which has no end without "
                    "max_resource; give max_resource, or assignment: proportional"
                )
        else:
            rungs = len(self.levels())
            if self.brackets[-1] >= rungs:
                raise ValueError(
                    f"bracket {self.brackets[-1]} does not exist: there are {rungs} rungs, so brackets go from 0 to "
                    f"{rungs - 1}; drop it, or lower min_resource"
                )
        if self.noise is not None and self.variant == "stopping":
            raise ValueError("noise delays promotions, and the stopping variant has none; use variant: promotion")
        return self

    def levels(self) -> list[int]:
        """Rung levels of bracket 0; the first alone where there is no upper limit."""
        from hpo_core.search.halving.rungs import default_min_resource, rung_levels

        if self.max_resource is None:
            return [self.min_resource or 1]
        smallest = self.min_resource or default_min_resource(self.max_resource, self.reduction_factor)
        return rung_levels(smallest, self.max_resource, self.reduction_factor)


class ShaSearch(Part):
    """Synchronous successive halving with barriers (Jamieson & Talwalkar 2016; ASHA Algorithm 1).

    While a bracket waits at a barrier, the next round begins on the free workers (Falkner et al. 2018).
    """

    method: Literal["sha"] = "sha"
    configs: int = Field(ge=1, description="Configurations of one bracket, n in the paper.")
    max_resource: _Resource = Field(description=_MAX)
    min_resource: _Resource | None = Field(default=None, description=_MIN)
    reduction_factor: float = Field(default=4, ge=1.1, le=1e6, description=_ETA)
    early_stopping_rate: int = Field(default=0, ge=0, description="s: the base rung is r * eta**s.")
    rounds: int = Field(default=1, ge=1, le=100_000, description="How many brackets of that size.")

    @model_validator(mode="after")
    def _check(self) -> ShaSearch:
        _check_range(self.min_resource, self.max_resource)
        if self.early_stopping_rate >= len(self.levels()):
            raise ValueError(
                f"early_stopping_rate = {self.early_stopping_rate} leaves none of the {len(self.levels())} rungs; "
                "lower it"
            )
        return self

    def levels(self) -> list[int]:
        from hpo_core.search.halving.rungs import default_min_resource, rung_levels

        smallest = self.min_resource or default_min_resource(self.max_resource, self.reduction_factor)
        return rung_levels(smallest, self.max_resource, self.reduction_factor)


class HyperbandSearch(Part):
    """Synchronous Hyperband, all brackets (Li et al. 2018); the asynchronous one is asha with several brackets."""

    method: Literal["hyperband"] = "hyperband"
    max_resource: _Resource = Field(description=_MAX)
    min_resource: _Resource | None = Field(default=None, description=_MIN)
    reduction_factor: float = Field(default=4, ge=1.1, le=1e6, description=_ETA)
    rounds: int = Field(default=1, ge=1, le=100_000, description="How often the loop over all brackets runs.")

    @model_validator(mode="after")
    def _check(self) -> HyperbandSearch:
        _check_range(self.min_resource, self.max_resource)
        return self

    def levels(self) -> list[int]:
        from hpo_core.search.halving.rungs import default_min_resource, rung_levels

        smallest = self.min_resource or default_min_resource(self.max_resource, self.reduction_factor)
        return rung_levels(smallest, self.max_resource, self.reduction_factor)


class PashaSearch(Part):
    """Progressive ASHA: the maximum resource grows only while rankings change (Bohdal et al., ICLR 2023)."""

    method: Literal["pasha"] = "pasha"
    configs: int | None = Field(default=None, ge=1, description=_CONFIGS)
    max_resource: _Resource = Field(description=_MAX)
    min_resource: _Resource = Field(default=1, description="Units of the shortest training, r.")
    reduction_factor: float = Field(default=3, ge=1.1, le=1e6, description=_ETA)
    percentile: float = Field(
        default=90,
        ge=0,
        le=100,
        description="Of the distances between curves that cross twice; the tolerance of the soft ranking.",
    )

    @model_validator(mode="after")
    def _check(self) -> PashaSearch:
        _check_range(self.min_resource, self.max_resource)
        return self

    def levels(self) -> list[int]:
        from hpo_core.search.halving.rungs import rung_levels

        return rung_levels(self.min_resource, self.max_resource, self.reduction_factor)


class PbtSearch(Part):
    """Population based training: short sessions that go on from the fitter one's weights (Li et al. 2019)."""

    method: Literal["pbt"] = "pbt"
    population: int = Field(
        default=20, ge=2, le=100_000, description="Members; with fewer workers they are worked off oldest first."
    )
    generations: int = Field(default=30, ge=1, le=1_000_000, description="Rounds of training of each member.")
    steps_per_generation: _Resource = Field(default=1, description="Units of training of one session.")
    selection: Literal["tournament", "truncation"] = Field(
        default="tournament",
        description="tournament: the fitter of two is the parent; truncation: the worst go on from one of the best.",
    )
    reproduction: Literal["eager", "generation"] = Field(
        default="eager",
        description="eager: whoever ended initiates as soon as there is somebody to meet; generation (the paper): free "
        "workers sample until population trials have ended, then trials of generations with that many initiate.",
    )
    opponents: Literal["past", "same", "any"] = Field(
        default="past",
        description="Generations opponents come from: up to the initiator's own, that one alone, or later ones too.",
    )
    opponents_from: int = Field(
        default=2, ge=1, description="Opponents come from so many generations up to the initiator's own."
    )
    truncation: float = Field(default=0.2, gt=0, le=0.5, description="Share of the worst that is replaced.")
    fitness: Literal["priority", "pareto"] = Field(
        default="priority",
        description="With several metrics: the first that differs decides, or dominance (nowhere worse, once better).",
    )
    perturb: list[Annotated[float, Field(gt=0, lt=1e6)]] = Field(
        default=[0.8, 1.2], min_length=1, description="Factors of numbers; ordered choices move to a neighbour."
    )
    resample: float | None = Field(
        default=None, ge=0, le=1, description="Probability that a parameter is drawn anew; default 0, truncation 0.25."
    )
    bounds: dict[str, tuple[float, float]] = Field(
        default_factory=dict, description="Narrower ranges for changed numbers than the space has for drawn ones."
    )
    barrier: bool = Field(default=False, description="Whether a generation must end before the next one begins.")
    max_gap: int | None = Field(
        default=None, ge=1, description="So many generations a member may be ahead of the slowest running one."
    )
    stragglers: int | None = Field(
        default=None, ge=1, description="Running trials so many generations behind the newest are stopped."
    )
    keep_last: bool = Field(default=False, description="Keep the last checkpoint of every trial.")
    rules: Literal[1, 2] = Field(
        default=2,
        description="Version of the rules of change, for studies recorded with 1: there floats with a step could stay "
        "where they were, and truncation left populations of 3 or 4 alone.",
    )

    @property
    def max_resource(self) -> int:
        """Units behind a trial whose ancestors all went on."""
        return self.generations * self.steps_per_generation

    @property
    def resample_probability(self) -> float:
        if self.resample is None:
            return 0.25 if self.selection == "truncation" else 0.0
        return self.resample


class RandomSearch(Part):
    """Every configuration is trained to ``max_resource`` at once."""

    method: Literal["random"] = "random"
    configs: int | None = Field(default=None, ge=1, description=_CONFIGS)
    max_resource: _Resource = Field(default=1, description=_MAX)


class GridSearch(Part):
    """Every point of a grid, in a stated order, trained to ``max_resource``.

    The first parameter of the space varies slowest, the last one fastest; values ascend (choices in their
    order); a parameter with ``when`` takes part only where it is active. Parameters named in ``random`` are
    drawn anew for each point.
    """

    method: Literal["grid"] = "grid"
    max_resource: _Resource = Field(default=1, description=_MAX)
    configs: int | None = Field(default=None, ge=1, description="Only so many points of the grid (extend goes on).")
    points: dict[str, Annotated[int, Field(ge=1, le=1_000_000)] | list[Any]] = Field(
        default_factory=dict,
        description="Per parameter the number of points (evenly spaced, on a log scale where the parameter is) or "
        "their list; needed for continuous parameters.",
    )
    random: list[str] = Field(default_factory=list, description="Parameters drawn at random instead.")
    repeats: int = Field(default=1, ge=1, description="How often the whole grid is gone through.")
    order: Literal["product", "shuffled"] = Field(default="product", description="Shuffled: by the study's seed.")


class RecordedGrant(Part):
    trial: int = Field(ge=0)
    bracket: int = 0
    rung: int = Field(ge=0)
    target: int = Field(ge=1)
    parent: int | None = Field(default=None, description="The trial it goes on from, where that is another one (PBT).")
    initiator: int | None = None
    opponent: int | None = None
    member: int | None = None


class RecordedTraining(Part):
    trial: int = Field(ge=0)
    target: int = Field(ge=1)


class RecordedSearch(Part):
    """Trains again along the grants another study recorded (``hpo rerun``); decides nothing itself."""

    method: Literal["recorded"] = "recorded"
    source: str
    grants: list[RecordedGrant]
    params: list[dict[str, Any]] = Field(description="Parameters of the trials, by number.")
    numbers: list[int] = Field(
        default_factory=list, description="Their numbers in the source, whose training seeds they keep; default: equal."
    )
    further: list[RecordedTraining] = Field(
        default_factory=list, description="Trials that were trained beyond the search, in that order."
    )
    any_metric: bool = Field(default=False, description="Of several metrics one suffices, as in the source (PBT).")
    keep_last: bool = Field(default=False, description="Keep the last checkpoint of every trial.")
    min_resource: int = 1
    max_resource: int = Field(ge=1)
    reduction_factor: float = 4


Search = Annotated[
    AshaSearch | ShaSearch | HyperbandSearch | PashaSearch | PbtSearch | RandomSearch | GridSearch | RecordedSearch,
    Field(discriminator="method"),
]
