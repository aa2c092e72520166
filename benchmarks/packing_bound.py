"""A lower bound of the makespan of jobs that share devices, by a linear program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import linprog

from hpo_core.model.devices.inventory import Demand
from hpo_core.packing.room import Room, WaitingJob


def lower_bound(jobs: Sequence[WaitingJob], room: Room, longer: Mapping[object, float]) -> float:
    """Seconds before which no schedule ends.

    At each moment a device runs a set of jobs that fits, within the cores of its node. The program chooses for how
    long each device runs each set, as if jobs could be cut anywhere, so that all of them are done. Total compute over
    the cluster's compute would be less: with few kinds of jobs, no set may fill a device. Sets are added as the prices
    of the program ask for them (cutting stock). The longest job on its fastest device is a bound, too.

    Args:
        longer: by job, how much longer it takes than expected.
    """
    kinds = list({id(job.demand["A100"]): job.demand for job in jobs}.values())
    number = {id(demand["A100"]): kind for kind, demand in enumerate(kinds)}
    work = np.zeros(len(kinds))  # in units of one run as expected
    for job in jobs:
        work[number[id(job.demand["A100"])]] += longer[job.key]
    places = range(len(room.devices))
    nodes = [tuple(sorted(room.devices[at].architecture for at in places if room.node_of[at] == node))
             for node in range(len(room.cores))]  # fmt: skip
    alike = list(dict.fromkeys(nodes))  # nodes with the same devices have the same cores here
    cores = [sum(room.cores[node] for node, of in enumerate(nodes) if of == one) for one in alike]
    groups = [(node, name) for node, one in enumerate(alike) for name in dict.fromkeys(one)]
    devices = [sum(of.count(name) for of in nodes if of == alike[node]) for node, name in groups]
    needs = [[demand[name] for demand in kinds] for _, name in groups]
    sizes = [room.compute[next(at for at in places if room.devices[at].architecture == name)] for _, name in groups]
    sets = [
        (group, np.bincount([kind], minlength=len(kinds)) * (sizes[group] // need.compute))
        for group in range(len(groups))
        for kind, need in enumerate(needs[group])
    ]
    while True:
        # variables: seconds of each set, and the makespan; rows: the work is done, devices, cores
        rows = np.zeros((len(kinds) + len(groups) + len(alike), len(sets) + 1))
        for column, (group, counts) in enumerate(sets):
            rows[: len(kinds), column] = -counts / [need.seconds for need in needs[group]]
            rows[len(kinds) + group, column] = 1
            rows[len(kinds) + len(groups) + groups[group][0], column] = counts @ [need.cores for need in needs[group]]
        rows[len(kinds) :, -1] = -np.array([*devices, *cores])
        found = linprog(np.eye(len(sets) + 1)[-1], A_ub=rows, b_ub=np.append(-work, np.zeros(len(groups) + len(alike))))
        prices = -found.ineqlin.marginals
        added = []
        for group, (node, _) in enumerate(groups):
            cost = prices[len(kinds) + len(groups) + node]
            gains = [price / need.seconds - cost * need.cores
                     for price, need in zip(prices, needs[group], strict=False)]  # fmt: skip
            gain, counts = _best_set(needs[group], gains, sizes[group])
            if gain > prices[len(kinds) + group] + 1e-7:
                added.append((group, counts))
        if not added:
            break
        sets += added
    longest = max(min(need.seconds for need in job.demand.values()) * longer[job.key] for job in jobs)
    return max(float(found.fun), longest)


def _best_set(needs: Sequence[Demand], gains: Sequence[float], size: int) -> tuple[float, Any]:
    """The most gain within ``size`` of compute, each kind as often as wanted; and how often it is taken."""
    best, last = [0.0] * (size + 1), [-1] * (size + 1)
    wanted = [
        (need.compute, gain, kind) for kind, (need, gain) in enumerate(zip(needs, gains, strict=True)) if gain > 0
    ]
    for left in range(1, size + 1):
        best[left] = best[left - 1]
        for compute, gain, kind in wanted:
            if compute <= left and best[left - compute] + gain > best[left]:
                best[left], last[left] = best[left - compute] + gain, kind
    counts, left = np.zeros(len(needs), dtype=int), size
    while left > 0:
        if last[left] < 0:
            left -= 1
        else:
            counts[last[left]] += 1
            left -= needs[last[left]].compute
    return best[size], counts
