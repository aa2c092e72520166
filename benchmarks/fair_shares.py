"""Twenty studies on 64 slots: shares by water-filling against first come, first served, in one virtual time.

Each study is an ASHA search (eta 4, resource 1 to 64) of 16 to 256 configurations, a unit of training takes 30
seconds, a trial's speed varies by a factor of about 1.5, and studies arrive on average every minute. Studies, search
methods, loops and the division are the real ones. Virtual workers train. Once a (virtual) second each study says what
it could use, the slots are divided anew, and a study gives back the slots whose jobs have ended. No running job is
ended. What is simplified: the holdings are kept by this script, all at one moment, instead of rows of a database.

- ``fair``: `divide` of hpo_core.pool.division, equal weights.
- ``fair, growing``: the same with `gang: auto`; 2 and 4 slots train a trial 1.7 and 3.1 times as fast (kappa is 4).
- ``first come``: the study that came first gets all that it can use, the next one what is left.
- ``static``: a study asks for 16 slots, begins in the order of arrival when that many are free, and keeps them to its
  end: first in, first out, as the paper on ASHA describes research clusters (5.3).

``slowdown``: seconds from arrival to end, by those that the study takes with all 64 slots alone. ``deviation``: slots
that a study uses, against its ideal (fluid) share at that moment. ``converge``: seconds from a study's arrival until no
study uses more than one slot above or below its ideal share, where all together could use more than the 64 slots;
``overtaken``: arrivals that were followed by another one before.

    python benchmarks/fair_shares.py [--seeds 5]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import plot_style
import result_file

from hpo_core.execution.loop import Loop
from hpo_core.execution.virtual import VirtualClock, VirtualExecutor
from hpo_core.model.devices.inventory import Device, Inventory
from hpo_core.pool.division import Member, divide, ideal_shares
from hpo_core.simulation import AnalyticCurves
from hpo_core.study import Study

SLOTS, STUDIES, UNIT, BETWEEN, REQUEST = 64, 20, 30.0, 60.0, 16
SPEEDUPS, GROWING = {2: 1.7, 4: 3.1}, "fair, growing"
Shares = dict[str, int]
Policy = Callable[[list["Tenant"]], Shares]


class HeldSlots(VirtualExecutor):
    """Virtual workers of which a study may use those that it holds."""

    held: frozenset[int] = frozenset()

    def busy(self) -> set[int]:
        return {worker for attempt in self._attempts.values() for worker in (attempt.worker, *attempt.others)}

    def inventory(self) -> Inventory:
        """At most the study's share of them: no job is granted before the study is within its share."""
        return Inventory(tuple(Device(f"worker-{number}") for number in self.offered))

    offered: tuple[int, ...] = ()


@dataclass
class Tenant:
    """One study that uses the slots."""

    name: str
    configs: int
    arrives: float
    seed: int
    grows: bool = False
    held: set[int] = field(default_factory=set)
    ended: float | None = None

    def begin(self, now: float) -> None:
        clock = VirtualClock(now)
        self.study = Study.create(
            {
                "study": self.name,
                "metric": {"name": "loss"},
                "space": {"x": {"type": "float", "low": 0, "high": 1}},
                "search": {"method": "asha", "configs": self.configs, "max_resource": 64, "reduction_factor": 4},
                "seed": self.seed,
                "cluster": {"kind": "local", "workers": SLOTS},
                "training": {"gang": "auto" if self.grows else 1},
                "scaling": {"speedups": SPEEDUPS if self.grows else {}},
            },
            clock=clock,
        )
        curves = AnalyticCurves(self.study.spec, self.seed, seconds_per_unit=UNIT, cost_spread=0.4)
        self.executor = HeldSlots(
            clock,
            workers=SLOTS,
            train=curves.train,
            seconds=curves.seconds,
            objectives=["loss"],
            speedup=lambda job: {1: 1.0, **SPEEDUPS}[job.demand.slots],
        )
        self.loop = Loop(self.study, self.executor)

    def take(self, share: int, free: set[int]) -> None:
        """Give back what is above ``share`` and idle, or take what nobody holds."""
        busy = self.executor.busy()
        idle = sorted(self.held - busy)
        surplus = max(0, len(self.held) - share)
        for number in idle[len(idle) - min(surplus, len(idle)) :]:
            self.held.discard(number)
            free.add(number)
        for number in sorted(free)[: max(0, share - len(self.held))]:
            self.held.add(number)
            free.discard(number)
        first = sorted(self.held, key=lambda number: (number not in busy, number))
        self.executor.offered = tuple(sorted(first[:share]))

    def run(self, until: float) -> None:
        self.loop.run(until=until)
        if self.study.finished:
            self.ended = self.executor.now()

    @property
    def used(self) -> int:
        return self.study.state.slots_in_use

    def claim(self) -> Member:
        return Member(study=self.name, demand=self.study.demand(SLOTS))


def fair(tenants: list[Tenant]) -> Shares:
    """And what nobody claims is lent to those that may grow into it."""
    shares = divide(SLOTS, [tenant.claim() for tenant in tenants])
    unclaimed = SLOTS - sum(shares.values())
    lent = divide(unclaimed, [Member(study=tenant.name, demand=tenant.study.spare(SLOTS)) for tenant in tenants])
    return {name: share + lent[name] for name, share in shares.items()}


def first_come(tenants: list[Tenant]) -> Shares:
    left, shares = SLOTS, {}
    for tenant in tenants:
        shares[tenant.name] = min(left, tenant.study.demand(SLOTS))
        left -= shares[tenant.name]
    return shares


def static(tenants: list[Tenant]) -> Shares:
    left, shares, blocked = SLOTS, {}, False
    for tenant in tenants:
        wanted = min(REQUEST, tenant.configs)
        blocked = blocked or wanted > left
        shares[tenant.name] = 0 if blocked else wanted
        left -= shares[tenant.name]
    return shares


POLICIES: dict[str, Policy] = {"fair": fair, GROWING: fair, "first come": first_come, "static": static}


@dataclass
class Moment:
    """What was so at one second."""

    time: float
    used: Shares
    deviation: float
    """The largest of any study, in slots."""
    came: bool
    """A study came, and all together can use more than there is."""


def play(tenants: list[Tenant], policy: Policy) -> list[Moment]:
    """All studies to their end."""
    free = set(range(SLOTS))
    coming, here, moments = sorted(tenants, key=lambda tenant: tenant.arrives), [], []
    now = 0.0
    while coming or here:
        if not here:
            now = max(now, math.ceil(coming[0].arrives))
        came = False
        while coming and coming[0].arrives <= now:
            coming[0].begin(now)
            here.append(coming.pop(0))
            came = True
        shares = policy(here)
        for tenant in sorted(here, key=lambda tenant: shares[tenant.name] - len(tenant.held)):  # who gives, first
            tenant.take(shares[tenant.name], free)
        claims = [tenant.claim() for tenant in here]
        ideal = ideal_shares(SLOTS, claims)
        for tenant in here:
            tenant.run(now + 1)
        deviation = max(abs(tenant.used - float(ideal[tenant.name])) for tenant in here)
        for tenant in [tenant for tenant in here if tenant.ended is not None]:
            here.remove(tenant)
            free |= tenant.held
            tenant.held = set()
        used = {tenant.name: tenant.used for tenant in here}
        assert sum(used.values()) <= SLOTS and sum(len(tenant.held) for tenant in here) + len(free) == SLOTS
        scarce = sum(claim.demand for claim in claims) > SLOTS
        moments.append(Moment(now, used, deviation, came and scarce))
        now += 1
    return moments


def tenants_of(seed: int) -> list[Tenant]:
    draw = random.Random(seed)
    found, time = [], 0.0
    for number in range(STUDIES):
        configs = round(2 ** draw.uniform(4, 8))
        found.append(Tenant(f"s{number:02}", configs, time, 1000 * seed + number))
        time += draw.expovariate(1 / BETWEEN)
    return found


def alone(tenant: Tenant) -> float:
    """Seconds that the study takes with all slots."""
    again = Tenant(tenant.name, tenant.configs, 0.0, tenant.seed)
    play([again], fair)
    assert again.ended is not None
    return again.ended


def converged(moments: list[Moment]) -> tuple[list[float], int]:
    """Seconds to converge after each arrival, and how many arrivals were followed by another one before."""
    seconds, overtaken, since = [], 0, None
    for moment in moments:
        if moment.came:
            overtaken += since is not None
            since = moment.time
        if since is not None and moment.deviation <= 1:
            seconds.append(moment.time + 1 - since)
            since = None
    return seconds, overtaken


def measure(seed: int, policy: str, solo: dict[str, float]) -> tuple[dict[str, Any], list[Moment], dict[str, float]]:
    tenants = tenants_of(seed)
    for tenant in tenants:
        tenant.grows = policy == GROWING
    moments = play(tenants, POLICIES[policy])
    slow = {tenant.name: ((tenant.ended or 0.0) - tenant.arrives) / solo[tenant.name] for tenant in tenants}
    crowded = [moment for moment in moments if len(moment.used) > 1]
    seconds, overtaken = converged(moments)
    busy = sum(sum(moment.used.values()) for moment in moments)
    figures = {
        "seed": seed,
        "policy": policy,
        "mean_slowdown": round(statistics.fmean(slow.values()), 3),
        "worst_slowdown": round(max(slow.values()), 3),
        "hours": round(moments[-1].time / 3600, 3),
        "use": round(busy / SLOTS / moments[-1].time, 3),
        "largest_deviation": round(max(moment.deviation for moment in crowded), 2),
        "mean_deviation": round(statistics.fmean(moment.deviation for moment in crowded), 2),
        "within_one_slot": round(sum(moment.deviation <= 1 for moment in crowded) / len(crowded), 3),
        "converge_median": round(statistics.median(seconds), 1) if seconds else None,
        "converge_most": max(seconds, default=None),
        "overtaken": overtaken,
    }
    return figures, moments, slow


def draw(played: dict[str, list[Moment]], slow: dict[str, dict[str, float]]) -> None:
    figure = plot_style.blank(11, 8)
    grid = figure.add_gridspec(3, 2, height_ratios=[1, 1, 1.05])
    names = list(slow["fair"])
    colours = [plot_style.pyplot.get_cmap("tab20")(number) for number in range(STUDIES)]
    last = max(played[policy][-1].time for policy in ("fair", "first come")) / 3600
    for row, policy in enumerate(("fair", "first come")):
        axes = figure.add_subplot(grid[row, :])
        moments = played[policy][::10]
        times = [moment.time / 3600 for moment in moments]
        axes.stackplot(times, [[m.used.get(name, 0) for m in moments] for name in names], colors=colours, linewidth=0)
        axes.set_ylim(0, SLOTS)
        axes.set_xlim(0, last)
        axes.set_ylabel("slots in use")
        axes.set_title(f"{policy}: slots of each study")
        if row:
            axes.set_xlabel("hours")
    left, right = figure.add_subplot(grid[2, 0]), figure.add_subplot(grid[2, 1])
    for policy, colour in (("fair", plot_style.BLUE), ("first come", plot_style.RUST), ("static", plot_style.GREY)):
        left.plot(range(1, STUDIES + 1), sorted(slow[policy].values()), "o-", color=colour, label=policy)
    plot_style.log_axis(left.yaxis)
    left.set_xticks([1, 5, 10, 15, 20])
    left.set_xlabel("studies, by slowdown")
    left.set_title("slowdown against having all 64 slots alone")
    left.legend()
    moments = played["fair"]
    right.plot([m.time / 3600 for m in moments], [m.deviation for m in moments], color=plot_style.BLUE, linewidth=0.7)
    for moment in moments:
        if moment.came:
            right.axvline(moment.time / 3600, color=plot_style.GOLD, linewidth=0.5, zorder=0)
    right.set_xlabel("hours; lines: a study came")
    right.set_title("fair: largest deviation from the ideal share, in slots")
    plot_style.keep(figure, result_file.RESULTS / "fair_shares.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many lists of studies (default: 5)")
    parser.add_argument("--out", help="where the JSON goes (default: results/fair_shares.json)")
    given = parser.parse_args()
    facts = result_file.machine()
    rows = []
    for seed in range(given.seeds):
        solo = {tenant.name: alone(tenant) for tenant in tenants_of(seed)}
        played, slow = {}, {}
        for policy in POLICIES:
            figures, played[policy], slow[policy] = measure(seed, policy, solo)
            rows.append(figures)
        if seed == 0:
            draw(played, slow)
    result_file.table(list(rows[0]), [list(row.values()) for row in rows])
    means = {
        policy: {
            key: round(statistics.fmean(row[key] for row in rows if row["policy"] == policy), 3)
            for key in ("mean_slowdown", "worst_slowdown", "hours", "use", "mean_deviation")
        }
        for policy in POLICIES
    }
    print()
    result_file.table(["mean of seeds", *means["fair"]], [[policy, *row.values()] for policy, row in means.items()])
    result_file.write("fair_shares", facts, {"means": means, "rows": rows}, given.out)


if __name__ == "__main__":
    main()
