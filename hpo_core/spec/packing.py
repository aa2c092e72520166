"""``packing``: several jobs share a device by what they need of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from hpo_core.model.devices.stated_demand import StatedDemand, amount, deciding_parameters
from hpo_core.model.errors import SpecError
from hpo_core.model.settings import Part
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

    Devices are the GPUs that the workers see, or the processors and the memory of each computer. A job whose need is
    not known gets a whole device, and is measured there.
    """

    policy: Policy = Field(
        default="fill",
        description="Which waiting jobs begin, and where. fill: jobs that leave least idle of what runs out first; "
        "the four of HyperSack; exact: the best solution of each decision, for small cases.",
    )
    devices: Literal["auto", "gpu", "cpu"] = Field(
        default="auto",
        description="What jobs share: GPUs, or processors and memory of computers; auto: the GPUs of a computer that "
        "has any, and the processors of one that has none.",
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
        if self.mps == "auto" and self.devices == "cpu":
            raise ValueError("mps = auto, but devices = cpu: MPS shares GPUs; set packing.devices=gpu, or mps=off")
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
