"""What simulated jobs need of a device, from what jobs were measured to need or a person says."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hpo_core.model.devices.inventory import Capacity, Device
from hpo_core.model.devices.measurement import Measurement, is_cpu
from hpo_core.model.devices.stated_demand import StatedDemand
from hpo_core.model.errors import SpecError
from hpo_core.placement.estimates import Estimate, Estimates
from hpo_core.placement.learned_ratio import LearnedRatios
from hpo_core.placement.room import WHOLE, SharedDevice
from hpo_core.spec import StudySpec
from hpo_core.spec.packing import PackingSpec

_MOST_CACHED = 20_000


@dataclass(frozen=True, slots=True)
class KnownJobs:
    """Measurements that simulated jobs are taken to be like."""

    measurements: tuple[Measurement, ...] = ()
    source: str = ""
    """Where they come from, in words."""

    @property
    def architecture(self) -> str | None:
        """Where most of them were taken."""
        found = Counter(one.architecture for one in self.measurements if not one.out_of_memory)
        return min(found, key=lambda name: (-found[name], name)) if found else None

    @property
    def unit_seconds(self) -> float:
        """Median seconds per unit of training there; 0 where none were measured."""
        found = [one.unit_seconds for one in self.measurements if one.architecture == self.architecture]
        return statistics.median([seconds for seconds in found if seconds > 0] or [0.0])


class SimulatedNeeds(Estimates):
    """Needs that are known from the beginning: a simulation profiles no job.

    What holds for a job, the first that is known: what ``packing.demand`` states, what was measured with its
    parameters, what is predicted from other parameters, the largest memory and the mean of all else on that
    architecture. An architecture without measurements takes those of the one with the most.

    Args:
        spec: the study.
        packing: its settings.
        devices: of the simulated cluster.
        known: measurements.

    Raises:
        SpecError: nothing says what a job needs on one of the devices.
    """

    def __init__(self, spec: StudySpec, packing: PackingSpec, devices: Sequence[Device], known: KnownJobs) -> None:
        stated = StatedDemand(packing.demand.stated())
        architectures = _architectures(devices)
        self.borrowed = _borrowed(architectures, known.measurements)
        """By architecture that was never measured: the one whose measurements stand for it."""
        past = [msgspec.structs.replace(one, objective="", code="") for one in known.measurements]
        for name, other in self.borrowed.items():
            past += [msgspec.structs.replace(one, architecture=name) for one in past if one.architecture == other]
        super().__init__(
            objective="",
            code="",
            study=spec.study,
            by=spec.deciding,
            stated=stated,
            past=past,
        )
        self.is_fixed = True  # repeats and policies must not learn of each other
        self.ratios = LearnedRatios()  # the rule of virtual devices gains nothing from more jobs at once
        self._parts = tuple(stated.amounts)
        self._typical = {name: _Typical.of(past, name) for name in architectures}
        for name in architectures:
            self._check(spec, name)
        self._cache: dict[tuple[Any, ...], Estimate] = {}
        self.guesses: set[str] = set()
        """Architectures where a job was neither measured nor predicted."""

    def is_known(self, params: Mapping[str, Any], architecture: str) -> bool:
        return True

    def of(
        self,
        params: Mapping[str, Any],
        *,
        units: int,
        device: SharedDevice,
        node_cores: int,
        devices_on_node: int = 1,
    ) -> Estimate:
        key = (units, device.architecture, device.memory, node_cores, devices_on_node, repr(params))
        if (cached := self._cache.get(key)) is not None:
            return cached
        found = super().of(params, units=units, device=device, node_cores=node_cores, devices_on_node=devices_on_node)
        need, typical = found.need, self._typical[device.architecture]
        changes: dict[str, Any] = {}
        if "memory" in found.guessed and typical.memory:
            self.guesses.add(device.architecture)
            changes["memory"] = min(typical.memory, device.memory)
        if "cores" in found.guessed:
            changes["cores"] = min(round(typical.cores * WHOLE), node_cores)
        if "compute" in found.guessed and is_cpu(device.architecture):
            changes["compute"] = max(1, min(WHOLE, changes.get("cores", need.cores) * WHOLE // node_cores))
        elif "compute" in found.guessed and typical.compute is not None:
            changes["compute"] = max(1, min(WHOLE, round(typical.compute * WHOLE)))
        if not need.seconds:
            changes["seconds"] = float(units)  # longer jobs first
        if len(self._cache) >= _MOST_CACHED:
            self._cache.clear()
        found = msgspec.structs.replace(found, need=msgspec.structs.replace(need, **changes), guessed=())
        self._cache[key] = found
        return found

    def duration(self, params: Mapping[str, Any], device: SharedDevice) -> tuple[float, float] | None:
        """(seconds of start-up, seconds per unit) as stated or measured; None where neither is known."""
        none, one = (
            super(SimulatedNeeds, self).of(params, units=units, device=device, node_cores=WHOLE).need.seconds
            for units in (0, 1)
        )
        return (none, one - none) if one > none else None

    def _check(self, spec: StudySpec, architecture: str) -> None:
        typical = self._typical[architecture]
        missing = [] if typical.memory or "memory" in self._parts else ["memory"]
        if is_cpu(architecture):
            if not (typical.is_measured or {"cores", "compute"} & {*self._parts}):
                missing.append("cores")
        elif typical.compute is None and "compute" not in self._parts:
            missing.append("compute")
        if missing:
            example = {"memory": "6GB", "compute": "30", "cores": "2"}
            options = " ".join(f"--set packing.demand.{part}={example[part]}" for part in missing)
            raise SpecError(
                f"--devices: nothing says how much {' and '.join(missing)} a job of {spec.study!r} needs on "
                f"{architecture}, so no jobs can be put together. State it ({options}), name a study whose attempts "
                "were measured (--demands NAME), or let the study run for a while: each attempt is measured."
            )


@dataclass(frozen=True, slots=True)
class _Typical:
    """Typical need by all measurements on one architecture."""

    memory: int
    """The largest peak; 0 where none was measured."""
    compute: float | None
    cores: float
    is_measured: bool

    @classmethod
    def of(cls, past: Sequence[Measurement], architecture: str) -> _Typical:
        own = [one for one in past if one.architecture == architecture and not one.out_of_memory]
        compute = [one.compute for one in own if one.compute is not None]
        return cls(
            max((one.peak for one in own), default=0),
            statistics.fmean(compute) if compute else None,
            statistics.fmean(one.cores for one in own) if own else 0.0,
            bool(own),
        )


def _architectures(devices: Sequence[Device]) -> list[str]:
    return list(dict.fromkeys(one.capacity.architecture for one in devices if isinstance(one.capacity, Capacity)))


def _borrowed(architectures: Sequence[str], measurements: Sequence[Measurement]) -> dict[str, str]:
    """GPUs borrow of GPUs, processors of processors: memory of a device is not that of a computer."""
    counts = Counter(one.architecture for one in measurements if not one.out_of_memory and one.peak)
    found = {}
    for name in architectures:
        alike = [other for other in counts if is_cpu(other) == is_cpu(name)]
        if name not in counts and alike:
            found[name] = min(alike, key=lambda other: (-counts[other], other))
    return found
