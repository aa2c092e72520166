"""Devices as people list them: ``4xA100-80GB,2xH100-80GB`` or ``3xCPU-16cores-64GB``."""

from __future__ import annotations

import re

from hpo_core.model import limits
from hpo_core.model.devices.amount_expression import UNITS
from hpo_core.model.devices.inventory import Capacity, Device
from hpo_core.model.devices.measurement import is_cpu
from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import shown

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
    counts: dict[str, int] = {}
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
            devices.append(Device(f"{name}-{counts.get(name, 0)}", most, capacity))
            counts[name] = counts.get(name, 0) + 1
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
