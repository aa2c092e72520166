"""``hpo simulate --devices``: devices that jobs share, and what is known of the jobs' needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpo_core.execution.packed_placing import learn_from_journal
from hpo_core.journal.measurements import measurements_of
from hpo_core.journal.protocol import Journal
from hpo_core.model.devices.inventory import Capacity, Device
from hpo_core.model.devices.measurement import is_cpu
from hpo_core.model.errors import SpecError, StudyNotFoundError
from hpo_core.model.short_text import meant_or_known, shown
from hpo_core.placement.demands import Estimates, deciding_parameters, objective_digest
from hpo_core.placement.packing.registry import POLICIES
from hpo_core.replay.audit import damage_named
from hpo_core.simulation.device_list import parse_devices
from hpo_core.simulation.shared_cluster import ONE_PER_DEVICE, SharedCluster
from hpo_core.simulation.simulated_needs import KnownJobs, SimulatedNeeds
from hpo_core.spec import PackingSpec, StudySpec
from hpo_core.study import Study

ONE = "one_per_device"
"""As typed: :data:`~hpo_core.simulation.shared_cluster.ONE_PER_DEVICE`."""
DEFAULT = (ONE, *(name for name in POLICIES if name != "exact"))
SHARED_RULES = (
    "Jobs on one device run as fast as alone while they claim together no more compute than it has; beyond that, each "
    "runs at the device's compute over the sum of the claims. What else sharing costs (caches, memory bandwidth) is "
    "not simulated.",
    "Needs are known from the beginning, so nothing is profiled, and no job takes more memory than it is given.",
)
FITS_NOWHERE = "A job that fits on no device, even alone, counts as a failed attempt."


@dataclass(frozen=True, slots=True)
class SharedDevicesQuestion:
    """What was typed of devices."""

    devices: str
    demands: str | None = None
    """A study whose attempts were measured."""
    policies: Sequence[str] = ()

    def check(self) -> None:
        """Refuse what is no policy.

        Raises:
            SpecError: its name, and the nearest one.
        """
        known = (ONE, *POLICIES)
        for name in self.policies:
            if name not in known:
                raise SpecError(f"--policy {shown(name)} is no packing policy; {meant_or_known(name, known)}")

    def clusters(self, spec: StudySpec, known: KnownJobs, *, measured_durations: bool) -> list[SharedCluster]:
        """One for each policy.

        Raises:
            SpecError: the device list is wrong.
        """
        packing = spec.packing or PackingSpec()
        devices = parse_devices(self.devices, most=packing.most)
        names = [ONE_PER_DEVICE if name == ONE else name for name in dict.fromkeys(self.policies or DEFAULT)]
        return [SharedCluster(devices, name, packing, known, measured_durations) for name in names]

    def known_jobs(self, spec: StudySpec, journal: Journal, past: str | None) -> KnownJobs:
        """Measurements for the jobs of a study: of the study named, of its past, of itself, or of its objective.

        Raises:
            SpecError: the study that was named measured nothing.
            StudyNotFoundError: there is none of that name.
        """
        named = self.demands or past
        try:
            known = self._of_study(spec, journal, named or spec.study)
        except StudyNotFoundError:
            if named:
                raise
            known = KnownJobs()
        if self.demands and not known.measurements:
            raise SpecError(
                f"--demands {self.demands}: no attempt of that study was measured. Name another one, or state what a "
                "job needs (--set packing.demand.memory=6GB --set packing.demand.compute=30)."
            )
        return known if known.measurements else self._of_history(spec, journal)

    def _of_study(self, spec: StudySpec, journal: Journal, name: str) -> KnownJobs:
        with damage_named(journal, name):
            study = Study.open(name, journal, reading=True)
        kept = Estimates(objective="", code="", study=name, by=_deciding(spec))
        learn_from_journal(study, kept, gpu=self._first_gpu())
        found = tuple(kept.new_measurements())
        return KnownJobs(found, f"{len(found):,} attempts of {name!r} that were measured")

    def _of_history(self, spec: StudySpec, journal: Journal) -> KnownJobs:
        if spec.objective is None:
            return KnownJobs()
        code = objective_digest(spec.objective, spec.pythonpath)
        found = tuple(one for one in measurements_of(journal).read(spec.objective, code) if not one.oversubscribe)
        return KnownJobs(found, f"{len(found):,} measurements of {spec.objective} in the history" if found else "")

    def _first_gpu(self) -> str:
        """Attempts that had a whole GPU do not know its name: they are taken to have run on the first one listed."""
        capacities = [device.capacity for device in parse_devices(self.devices)]
        names = [one.architecture for one in capacities if isinstance(one, Capacity)]
        return next((name for name in names if not is_cpu(name)), "")


def _deciding(spec: StudySpec) -> tuple[str, ...]:
    return deciding_parameters(spec.search_space(), spec.constants, spec.packing.by if spec.packing else None)


def source_of(cluster: SharedCluster) -> str:
    """Where needs come from, and on what they are placed."""
    stated = cluster.packing.demand.stated()
    found = [f"{name} as stated ({text})" for name, text in stated.items()]
    if cluster.known.measurements:
        found.append(f"{'the rest ' if found else ''}from {cluster.known.source}")
    return f"Devices: {described(cluster.devices)}. Needs of the jobs: {', '.join(found)}."


def described(devices: Sequence[Device]) -> str:
    """``4 A100 and 2 H100``."""
    counts: dict[str, int] = {}
    for device in devices:
        if isinstance(device.capacity, Capacity):
            counts[device.capacity.architecture] = counts.get(device.capacity.architecture, 0) + 1
    *first, last = [f"{count} {name}" for name, count in counts.items()]
    return f"{', '.join(first)} and {last}" if first else last


def taken_for_granted(needs: Sequence[SimulatedNeeds], *, failed: bool) -> list[str]:
    """Lines on what these simulations leave out."""
    found = list(SHARED_RULES)
    for name, other in sorted({pair for one in needs for pair in one.borrowed.items()}):
        found.append(f"Nothing was measured on {name}: jobs need there what they need on {other}, and take as long.")
    found += [
        f"Some jobs are like none that was measured on {name}: they take the largest memory and the mean of all else "
        "that was measured there."
        for name in sorted({name for one in needs for name in one.guesses})
    ]
    return [*found, FITS_NOWHERE] if failed else found
