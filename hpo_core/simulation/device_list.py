"""Devices as people list them: ``4xA100-80GB,2xH100-80GB`` or ``3xCPU-16cores-64GB``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hpo_core.execution.placing import learn_from_journal, objective_digest
from hpo_core.journal.protocol import Journal
from hpo_core.model import limits
from hpo_core.model.devices.inventory import Capacity, Device
from hpo_core.model.devices.measurement import is_cpu
from hpo_core.model.devices.stated_demand import UNITS
from hpo_core.model.errors import SpecError, StudyNotFoundError
from hpo_core.model.short_text import meant_or_known, shown
from hpo_core.placement.estimates import Estimates
from hpo_core.placement.policies import POLICIES
from hpo_core.replay.audit import damage_named
from hpo_core.simulation.simulated_needs import KnownJobs, SimulatedNeeds
from hpo_core.simulation.simulation import ONE_PER_DEVICE, SharedCluster
from hpo_core.spec import StudySpec
from hpo_core.spec.sent_functions import short_name
from hpo_core.study import Study

PER_NODE = 8
"""GPUs of one computer where nothing else is said."""
UNLIMITED_CORES = 10**9
"""Thousandths of cores of a computer whose cores nobody gave: more than any jobs ask for."""
_RULE = (
    "A device list is COUNTxNAME-MEMORY with commas between, as 4xA100-80GB,2xH100-80GB; computers are "
    "3xCPU-16cores-64GB; 8xA100-80GB/4 puts four GPUs into one computer, 8xA100-64cores-80GB says how many cores each "
    "computer has."
)
_MEMORY = re.compile(rf"(\d+(?:\.\d+)?)({'|'.join(UNITS)})")
_CORES = re.compile(r"(\d+)cores?")
_LIKE_MEMORY = re.compile(r"\d+(\.\d+)?\s*[kKmMgGtTpP]?i?[bB]?")
_LEAST_MEMORY, _MOST_MEMORY = 1e6, 1e14
_MOST_CORES = 10_000


def parse_devices(text: str, *, most: int = 1) -> tuple[Device, ...]:
    """The devices of a list, node by node.

    Each entry is on nodes of its own: of eight GPUs, or as many as ``/COUNT`` says; a ``CPU`` is a whole computer. A
    node's cores limit its jobs only where the entry gives them.

    Args:
        most: jobs on one device at once.

    Raises:
        SpecError: which entry, what is wrong with it, and how to write it.

    >>> [(d.name, d.capacity.node, d.capacity.memory) for d in parse_devices("2xA100-80GB, 1xH100-94GB")]
    ... # doctest: +NORMALIZE_WHITESPACE
    [('A100-0', 'node-0', 80000000000), ('A100-1', 'node-0', 80000000000), ('H100-0', 'node-1', 94000000000)]
    >>> [(d.name, d.capacity.node, d.capacity.cores) for d in parse_devices("2xCPU-16cores-64GB")]
    [('CPU-0', 'node-0', 16000), ('CPU-1', 'node-1', 16000)]
    """
    entries = text.split(",")
    devices: list[Device] = []
    counts = Counter[str]()
    nodes = 0
    for place, entry in enumerate(entries, 1):
        where = f"--devices: {shown(entry.strip())}"
        if len(entries) > 1:
            where += f" (entry {place} of {len(entries)})"
        count, name, memory, cores, per_node = _entry(entry.strip(), where)
        if len(devices) + count > limits.SIMULATED_DEVICES:
            raise SpecError(
                f"{where}: {len(devices) + count:,} devices in all, and at most {limits.SIMULATED_DEVICES:,} are "
                "simulated; give fewer."
            )
        for number in range(count):
            capacity = Capacity(
                node=f"node-{nodes + number // per_node}",
                architecture=name,
                memory=memory,
                free=memory,
                cores=cores,
                gpu=not is_cpu(name),
            )
            devices.append(Device(f"{name}-{counts[name]}", most, capacity))
            counts[name] += 1
        nodes += -(-count // per_node)
    return tuple(devices)


def _entry(entry: str, where: str) -> tuple[int, str, int, int, int]:
    """(count, name, bytes, thousandths of cores, devices of one node)."""
    if not entry:
        raise SpecError(f"{where} is empty. {_RULE}")
    kind, slash, group = entry.partition("/")
    digits, _, rest = kind.partition("x")
    if not (digits.isascii() and digits.isdigit() and rest):
        raise SpecError(f"{where} does not begin with a count and x, as 4xA100-80GB does. {_RULE}")
    count = _number(digits, f"{where}: a count of {shown(digits)}", limits.SIMULATED_DEVICES)
    parts = rest.split("-")
    memory = cores = None
    while len(parts) > 1:
        if (found := _MEMORY.fullmatch(parts[-1])) and memory is None:
            memory = float(found[1]) * UNITS[found[2]]
        elif (found := _CORES.fullmatch(parts[-1])) and cores is None:
            cores = _number(found[1], f"{where}: {shown(parts[-1])}", _MOST_CORES)
        else:
            break
        parts.pop()
    name = "-".join(parts).strip()
    if memory is None:
        last = parts[-1]
        unclear = f": {shown(last)} is no amount of memory, as 80GB is" if _LIKE_MEMORY.fullmatch(last) else ""
        raise SpecError(f"{where} does not say how much memory each device has{unclear}. {_RULE}")
    if not _LEAST_MEMORY <= memory <= _MOST_MEMORY:
        raise SpecError(f"{where}: the memory of a device must be from 1MB to 100TB; correct it.")
    if not name or not name.isprintable() or len(name) > 100 or not name[0].isalnum():
        raise SpecError(f"{where} has no name of a device, such as A100, before its memory. {_RULE}")
    if is_cpu(name):
        if cores is None:
            raise SpecError(f"{where} does not say how many cores each computer has. {_RULE}")
        if slash:
            raise SpecError(f"{where}: {name} is a whole computer, so drop /{shown(group)}. {_RULE}")
        return count, name, int(memory), 1000 * cores, 1
    per_node = PER_NODE
    if slash:
        if not (group.isascii() and group.isdigit()):
            raise SpecError(f"{where}: after / stands how many of them are in one computer, as /4. {_RULE}")
        per_node = _number(group, f"{where}: {shown(group)} in one computer", limits.SIMULATED_DEVICES)
    return count, name, int(memory), UNLIMITED_CORES if cores is None else 1000 * cores, per_node


def _number(digits: str, what: str, most: int) -> int:
    number = int(digits[:10])
    if not 1 <= number <= most:
        raise SpecError(f"{what} must be from 1 to {most:,}; correct it.")
    return number


ONE = "one_per_device"
"""As typed: :data:`~hpo_core.simulation.simulation.ONE_PER_DEVICE`."""
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

    def clusters(self, spec: StudySpec, known: KnownJobs, *, own_durations: bool) -> list[SharedCluster]:
        """One for each policy.

        Args:
            own_durations: whether jobs take as long as they were measured or stated to, where that is known.

        Raises:
            SpecError: the device list is wrong.
        """
        packing = spec.packing_settings
        devices = parse_devices(self.devices, most=packing.most)
        names = [ONE_PER_DEVICE if name == ONE else name for name in dict.fromkeys(self.policies or DEFAULT)]
        measured = own_durations and bool(known.unit_seconds or packing.demand.unit_seconds)
        return [SharedCluster(devices, name, packing, known, measured) for name in names]

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
        kept = Estimates(objective="", code="", study=name, by=spec.deciding)
        learn_from_journal(study, kept, gpu=self._first_gpu())
        found = tuple(kept.new_measurements())
        return KnownJobs(found, f"{len(found):,} attempts of {name!r} that were measured")

    def _of_history(self, spec: StudySpec, journal: Journal) -> KnownJobs:
        if spec.objective is None:
            return KnownJobs()
        code = objective_digest(spec.objective, spec.pythonpath)
        found = tuple(journal.measurements.read(spec.objective, code))
        return KnownJobs(
            found, f"{len(found):,} measurements of {short_name(spec.objective)} in the history" if found else ""
        )

    def _first_gpu(self) -> str:
        """Attempts that had a whole GPU do not know its name: they are taken to have run on the first one listed."""
        capacities = [device.capacity for device in parse_devices(self.devices)]
        names = [one.architecture for one in capacities if isinstance(one, Capacity)]
        return next((name for name in names if not is_cpu(name)), "")


def source_of(cluster: SharedCluster) -> str:
    """Where needs come from, and on what they are placed."""
    stated = cluster.packing.demand.stated()
    found = [f"{name} as stated ({text})" for name, text in stated.items()]
    if cluster.known.measurements:
        found.append(f"{'the rest ' if found else ''}from {cluster.known.source}")
    return f"Devices: {described(cluster.devices)}. Needs of the jobs: {', '.join(found)}."


def described(devices: Sequence[Device]) -> str:
    """``4 A100 and 2 H100``."""
    counts = Counter(one.capacity.architecture for one in devices if isinstance(one.capacity, Capacity))
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
