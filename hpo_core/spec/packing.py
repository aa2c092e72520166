"""``packing``: several jobs share a device by what they need of it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from hpo_core.model.errors import SpecError
from hpo_core.model.settings import Part
from hpo_core.model.short_text import meant_or_known, shown
from hpo_core.model.space.choices import ListedParameter
from hpo_core.model.space.number import NumberParameter
from hpo_core.model.space.parameter import ParameterType
from hpo_core.model.space.search_space import SearchSpace
from hpo_core.spec.sent_functions import FUNCTION, FunctionName

if TYPE_CHECKING:
    from hpo_core.spec.study_spec import StudySpec

Policy = Literal[
    "fill",
    "first_fit",
    "first_fit_decreasing",
    "worst_fit",
    "worst_fit_decreasing",
    "exact",
]
DEFAULT = "default"
"""The key that stands for all architectures that are not named."""
MOST_OVERSUBSCRIBED = 100.0
MPS_CLIENTS = 48
"""Processes that MPS lets share one GPU (Volta and later), by NVIDIA's documentation."""


UNITS = {
    "kB": 1e3,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
    "B": 1.0,
}
_AMOUNT = re.compile(rf"\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s?({'|'.join(UNITS)})?\s*")
_MOST = {"memory": 2.0**62, "compute": 100.0, "cores": 1e6}
_UNITS = {"memory": "bytes", "compute": "percent of the device", "cores": "cores"}
PARTS = tuple(_MOST)


def amount(given: Any, *, where: str) -> float:
    """A number, or one with a unit of bytes.

    Raises:
        SpecError: it is none, negative or not finite.

    >>> amount("6GB", where="packing.demand.memory"), amount(30, where="packing.demand.compute")
    (6000000000.0, 30.0)
    """
    value = math.nan
    if isinstance(given, str) and (found := _AMOUNT.fullmatch(given)):
        value = float(found[1]) * UNITS[found[2] or "B"]
    elif isinstance(given, int | float) and not isinstance(given, bool):
        value = float(given)
    if not 0 <= value < math.inf:
        raise SpecError(
            f"{where} = {shown(given)} must be a number, 0 or more, or an amount such as 6GB. What depends on the "
            "parameters is said by a function: packing.demand.function."
        )
    return value


class StatedDemand:
    """Amounts by part; a part that is not stated is measured.

    ``memory`` in bytes, ``compute`` in percent of a device, ``cores`` of the node.

    Args:
        amounts: the same for all jobs.
        function: given a job's parameters it returns some parts by name; what it returns wins over ``amounts``.

    Raises:
        SpecError: an unknown part, or no amount.

    >>> stated = StatedDemand({"compute": 30}, lambda params: {"memory": 2e9 + 40e6 * params["batch_size"]})
    >>> stated.of({"batch_size": 50})
    {'compute': 30.0, 'memory': 4000000000.0}
    """

    def __init__(
        self, amounts: Mapping[str, Any] | None = None, function: Callable[[dict[str, Any]], Any] | None = None
    ) -> None:
        self.amounts = _checked(amounts or {}, "packing.demand")
        """The same for all jobs."""
        self._function = function

    def of(self, params: Mapping[str, Any]) -> dict[str, float]:
        """Amounts for a job with these parameters.

        Raises:
            SpecError: the function raised, or returned no such amounts.
        """
        if self._function is None:
            return self.amounts
        where = f"packing.demand.function of {dict(params)!r:.300}"
        try:
            found = self._function(dict(params))
        except Exception as error:  # whatever the user's function raises
            raise SpecError(f"{where} raised {type(error).__name__}: {error}. Correct the function.") from error
        if not isinstance(found, Mapping):
            raise SpecError(f"{where} returned {shown(found)}; it must return amounts by name, as {{'memory': '6GB'}}.")
        return {**self.amounts, **_checked(found, where)}


def _checked(given: Mapping[str, Any], where: str) -> dict[str, float]:
    found = {}
    for name, one in given.items():
        if name not in PARTS:
            raise SpecError(f"{where}: unknown part {name!r}; {meant_or_known(str(name), PARTS)}")
        value = found[name] = amount(one, where=f"{where}.{name}")
        if value > _MOST[name]:
            raise SpecError(f"{where}.{name} = {shown(one)} is {value:g} {_UNITS[name]}; at most {_MOST[name]:g}.")
    return found


class DemandSpec(Part):
    """The need of one job, as far as a person says it; the rest is measured.

    >>> import hpo_core as hpo
    >>> hpo.Demand(memory="6GB", compute=30).stated()
    {'memory': '6GB', 'compute': 30.0}
    """

    memory: str | float | None = Field(
        default=None,
        description="Peak memory, such as 6GB: of its GPU, or of the computer where jobs share processors.",
    )
    compute: float | None = Field(
        default=None, description="Percent of the device's compute while it runs, at most 100."
    )
    cores: float | None = Field(default=None, description="CPU cores that it keeps busy.")
    function: FunctionName | None = Field(
        default=None,
        pattern=FUNCTION,
        description="module:function(params) that returns some of the above by name, for needs that depend on the "
        "parameters; called in the study's process.",
    )

    def stated(self) -> dict[str, str | float]:
        return self.model_dump(exclude_none=True, exclude={"function"})

    @model_validator(mode="after")
    def _check(self) -> DemandSpec:
        try:
            for name, value in StatedDemand(self.stated()).of({}).items():
                if value <= 0:
                    raise ValueError(f"{name} = {value:g} must be above 0; leave it out to have it measured")
        except SpecError as error:
            raise ValueError(str(error)) from None
        return self


class PackingSpec(Part):
    """Several jobs at once on one device, by what they were measured to need (HyperSack, Section III).

    Devices are the GPUs that a worker sees (``CUDA_VISIBLE_DEVICES``); where it sees none, the processors and the
    memory of its computer. A job whose need is not known gets a whole device, and is measured there.
    """

    policy: Policy = Field(
        default="fill",
        description="Which waiting jobs begin, and where. fill: jobs that leave least idle of what runs out first; "
        "the four of HyperSack; exact: the best solution of each decision, for small cases.",
    )
    by: list[str] | None = Field(
        default=None,
        min_length=1,
        title="Need decided by",
        description="Parameters and constants that decide what a job needs. null: all without floats.",
    )
    demand: DemandSpec = DemandSpec()
    oversubscribe: dict[str, float] = Field(
        default_factory=dict,
        description="How many times its compute the jobs of a device may claim together, by architecture: "
        "{default: 1.0, A100: 3}, or one number for all. It scales compute (of processors: cores), never memory. Where "
        "neither an architecture nor default is stated: 1 at first, and more "
        "where attempts show that more jobs at once do more work.",
    )
    memory: dict[str, str | int] = Field(
        default_factory=dict,
        description="Most memory of one device that jobs use together, by architecture: {CPU: 8GB, default: 20GB}, or "
        "one amount for all; left out: all that others leave free, but for a reserve.",
    )
    most: int = Field(
        default=16, ge=1, le=256, title="Most jobs on a device", description="Most jobs on one device at once."
    )
    mps: Literal["off", "auto"] = Field(
        default="off",
        title="Share GPUs by MPS",
        description="auto: jobs share a GPU through NVIDIA's Multi-Process Service where its daemon runs: they compute "
        "at the same time, and the driver keeps each to its share. off: they take turns, and one that faults or is "
        "ended (pruned, timed out) cannot harm its neighbours, as it may under MPS.",
    )

    @field_validator("mps", mode="before")
    @classmethod
    def _switch(cls, given: Any) -> Any:
        return {False: "off", True: "auto"}[given] if isinstance(given, bool) else given

    @model_validator(mode="after")
    def _check_mps(self) -> PackingSpec:
        if self.mps == "auto" and self.most > MPS_CLIENTS:
            raise ValueError(
                f"most = {self.most}, but MPS lets {MPS_CLIENTS} processes share a GPU; lower it, or mps=off"
            )
        return self

    @field_validator("oversubscribe", "memory", mode="before")
    @classmethod
    def _for_all(cls, given: Any) -> Any:
        return {DEFAULT: given} if isinstance(given, str | int | float) and not isinstance(given, bool) else given

    @field_validator("oversubscribe")
    @classmethod
    def _check_ratios(cls, ratios: dict[str, float]) -> dict[str, float]:
        for name, ratio in ratios.items():
            if not 1 <= ratio <= MOST_OVERSUBSCRIBED:
                raise ValueError(f"oversubscribe.{name} = {ratio:g} must be from 1 to {MOST_OVERSUBSCRIBED:g}")
        return ratios

    @field_validator("memory")
    @classmethod
    def _check_memory(cls, memory: dict[str, str | int]) -> dict[str, str | int]:
        for name, given in memory.items():
            if _bytes(given, f"packing.memory.{name}") < 1_000_000:
                raise ValueError(f"memory.{name} = {given!r} must be 1MB or more; write an amount such as 8GB")
        return memory

    def ratio(self, architecture: str) -> float:
        return self.oversubscribe.get(architecture, self.oversubscribe.get(DEFAULT, 1.0))

    def finds_ratio(self, architecture: str) -> bool:
        return not {architecture, DEFAULT} & self.oversubscribe.keys()

    def memory_limit(self, architecture: str) -> int | None:
        given = self.memory.get(architecture, self.memory.get(DEFAULT))
        return None if given is None else _bytes(given, "packing.memory")


def _bytes(given: str | int, where: str) -> int:
    # Bytes of an amount.
    try:
        return int(amount(given, where=where))
    except SpecError as error:
        raise ValueError(str(error)) from None


def read_packing(given: Any) -> Any:
    return {} if given is True else None if given is False else given


def check_deciding(spec: StudySpec) -> None:
    """Refuse ``packing.by`` that names what the study does not have.

    Raises:
        ValueError: place, value, rule and cure.
    """
    if spec.packing is None:
        return
    try:
        deciding_parameters(spec.search_space(), spec.constants, spec.packing.by)
    except SpecError as error:
        raise ValueError(str(error)) from None


def deciding_parameters(
    space: SearchSpace, constants: Mapping[str, Any], by: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Names of the parameters and constants that tell jobs with different needs apart.

    By default all that are no plain floats: not a learning rate, be it a range or a list of floats. A float that does
    decide, such as a width multiplier, has to be named.

    Args:
        by: the names that a user gives; None: the default.

    Raises:
        SpecError: ``by`` holds a name that is neither a parameter nor a constant, or holds one twice.
    """
    if by is None:
        found = [name for name, parameter in space.parameters.items() if not _is_plain_float(parameter)]
        return (*found, *(name for name, value in constants.items() if not isinstance(value, float)))
    known = [*space.parameters, *constants]
    for name in by:
        if name not in known:
            hint = meant_or_known(name, known)
            raise SpecError(f"packing.by: {name!r} is no parameter of the space and no constant; {hint}")
    if len(set(by)) < len(by):
        raise SpecError(f"packing.by = {list(by)} holds a name twice; drop it.")
    return tuple(by)


def _is_plain_float(parameter: ParameterType) -> bool:
    if isinstance(parameter, ListedParameter):
        return all(isinstance(value, float) for value in parameter.listed())
    return isinstance(parameter, NumberParameter) and not parameter.whole
