"""The oversubscription ratio that a study finds by itself: how many jobs at once do the most work."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.devices.inventory import Inventory
from hpo_core.model.devices.measurement import Measurement, Usage
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.packing.estimates import Estimates
from hpo_core.packing.learned_ratio import LADDER, LearnedRatios
from hpo_core.packing.packed_run import learn_from_journal
from hpo_core.packing.policies import POLICIES
from hpo_core.packing.shared_devices import SharedDevices
from hpo_core.placement.placer import JobKey
from hpo_core.replay.audit import audit
from hpo_core.study import Study
from hpo_core.views.device_use import measured_ratio_lines, measured_ratios
from tests.conftest import make_spec
from tests.placement.test_shared_devices import GB, devices_for, gpu, job

Law = Callable[[float], float]
"""Speed of each job, relative to alone, by the compute that all claim together."""


def computes(load: float) -> float:
    """Kernels take turns: what claims add up to above 1 is shared out."""
    return min(1.0, 1 / load)


def waits(load: float) -> float:
    """Jobs that wait for data most of their time: the device does up to 2.4 times what one claim says."""
    return min(1.0, 2.4 / load)


def play(
    placer: SharedDevices,
    jobs: list[Job],
    law: Law,
    *,
    kinds: dict[int, tuple[int, float]],
    tell: Callable[[Report], object] = lambda report: None,
    noise: float = 0.02,
    now: float = 1.0,
) -> tuple[float, list[float]]:
    """A study to its end: (its time, the ratio at each end of a job). ``kinds``: permille and seconds by width."""
    rng = random.Random(1)
    waiting, running, ratios = list(jobs), dict[JobKey, tuple[Job, str, float, float]](), []
    begin = now
    while waiting or running:
        placer.update(placer.inventory)
        for one, slot in placer.place(waiting[:16], now=now).begun:
            waiting.remove(one)
            running[one.key] = one, slot.name, now, kinds[one.params["width"]][1]
        loads: dict[str, float] = {}
        for one, device, _, _ in running.values():
            loads[device] = loads.get(device, 0.0) + kinds[one.params["width"]][0] / 1000
        rates = {key: law(loads[device]) for key, (_, device, _, _) in running.items()}
        passed, key = min((left / rates[key], key) for key, (_, _, _, left) in running.items())
        now += passed
        running = {k: (one, device, at, left - passed * rates[k]) for k, (one, device, at, left) in running.items()}
        one, _, began, _ = running.pop(key)
        used = Usage(
            device_memory=GB,
            compute=kinds[one.params["width"]][0] / 1000,
            cores=0.1,
            unit_seconds=(now - began) / 3 * rng.gauss(1, noise),
        )
        report = Report(
            trial=one.trial, attempt=one.attempt, outcome=Outcome.COMPLETED, started=began, ended=now, usage=used
        )
        tell(placer.judge(report))
        placer.release(one.key)
        ratios.append(placer.estimates.ratios.ratios().get("A100", 1.0))
    return now - begin, ratios


KINDS = {1: (300, 40.0), 2: (350, 25.0), 3: (250, 60.0)}


def jobs_of(count: int) -> list[Job]:
    return [job(number, width=1 + number % 3) for number in range(count)]


def packed(
    ratio: float | None = None, devices: int = 2, kinds: dict[int, tuple[int, float]] = KINDS, **packing: object
) -> SharedDevices:
    given = {} if ratio is None else {"oversubscribe": ratio}
    return devices_for(
        *(gpu(f"GPU-{number}", memory=200) for number in range(devices)),
        packing=given | packing,
        free_choice=True,
        stated={"memory": "1GB", "cores": 0.1},
        past=[
            Measurement(
                objective="m:f", code="c", architecture="A100", params={"width": width}, device_memory=GB,
                compute=compute / 1000, unit_seconds=seconds / 3, study="before", measured_at=0.1,
            )
            for width, (compute, seconds) in kinds.items()
        ],
    )  # fmt: skip


def test_jobs_that_wait_for_data_get_more_of_a_device_and_are_done_sooner() -> None:
    fixed, _ = play(packed(1), jobs_of(150), waits, kinds=KINDS)
    found, ratios = play(packed(), jobs_of(150), waits, kinds=KINDS)
    best, _ = play(packed(2.5), jobs_of(150), waits, kinds=KINDS)
    assert ratios[0] == 1.0 and ratios[-1] in (2.0, 2.5, 3.0), ratios
    assert found < 0.6 * fixed and found < 1.35 * best


def test_jobs_that_compute_go_back_soon_and_lose_nothing() -> None:
    fixed, _ = play(packed(1), jobs_of(150), computes, kinds=KINDS)
    found, ratios = play(packed(), jobs_of(150), computes, kinds=KINDS)
    assert max(ratios) <= 2.0 and ratios[-1] <= 1.5, ratios
    assert found < 1.02 * fixed, "1.5 fills the gap that is too small for a whole job"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_limit_on_jobs_holds_at_every_ratio(policy: str) -> None:
    """A share of the compute stood for it: jobs that began at a ratio of 1 left room for a third one at 1.5."""
    kinds = {1: (480, 40.0), 2: (430, 25.0), 3: (500, 60.0)}
    placer = packed(kinds=kinds, most=2, policy=policy)
    counts: list[int] = []

    def tell(report: Report) -> None:
        counts.append(max(Counter(held.slot.name for held in placer.room.held.values()).values()))

    _, ratios = play(placer, jobs_of(60), waits, kinds=kinds, tell=tell)
    assert max(ratios) > 1, "a larger ratio is tried"
    assert max(counts) == 2


def test_what_a_study_states_wins_and_nothing_is_tried() -> None:
    placer = packed(1)
    _, ratios = play(placer, jobs_of(90), waits, kinds=KINDS)
    assert ratios[-1] > 1, "it is measured all the same"
    assert placer.learned_ratios == {} and len(placer) == 0
    placed = placer.place(jobs_of(90)).begun
    assert placed, "jobs begin"
    assert sum(slot.portion.compute for _, slot in placed if slot.portion) <= 2000, "two devices, each once"


@given(seed=st.integers(0, 2**32), saturates=st.sampled_from([1.0, 1.4, 2.0, 3.0]))
@settings(max_examples=15, deadline=None)
def test_whatever_the_order_the_ratio_is_one_of_the_ladder_and_the_work_is_what_the_law_says(
    seed: int, saturates: float
) -> None:
    rng = random.Random(seed)
    attempts = []
    for number in range(rng.randint(0, 120)):
        key = rng.randint(0, 4)
        load = rng.uniform(0.2, 3.0)
        attempts.append(
            Measurement(
                objective="m:f", code="", architecture="A100", params={"k": key}, load=load, measured_at=1.0 + number,
                unit_seconds=(1 + key) / min(1.0, saturates / load), jobs=3.0,
            )
        )  # fmt: skip
    learned, shuffled = LearnedRatios(), LearnedRatios()
    for one in attempts:
        learned.add("A100", one.key, one)
    for one in rng.sample(attempts, len(attempts)):
        shuffled.add("A100", one.key, one)
    assert learned.ratios() == shuffled.ratios() and learned.seen("A100") == shuffled.seen("A100")
    assert set(learned.ratios().values()) <= set(LADDER)
    seen = learned.seen("A100")
    if seen and seen[0].ratio == 1.0:
        for one in seen:
            assert math.isclose(one.work, min(one.load, saturates), rel_tol=0.12), "no noise, but each load is a range"


def test_a_study_that_goes_on_knows_what_it_measured_and_says_it() -> None:
    space = {"width": {"type": "ordinal", "choices": [1, 2, 3]}}
    search = {"method": "random", "configs": 90, "max_resource": 3}
    study = Study.create(make_spec(study="ratios", space=space, search=search, packing={}), MemoryJournal())
    placer = packed()
    jobs = study.set_capacity(Inventory.of(90))

    def tell(report: Report) -> None:
        study.tell_report(msgspec.structs.replace(report, metrics={"loss": 1.0}))

    play(placer, jobs, waits, kinds=KINDS, tell=tell)
    seen = placer.estimates.ratios.seen("A100")
    assert len(seen) >= 2
    again = Estimates(objective="m:f", code="c", study="s", by=("width",))
    learn_from_journal(Study.open("ratios", study.journal, reading=True), again)
    assert again.ratios.seen("A100") == seen and again.ratios.ratios() == placer.estimates.ratios.ratios()
    assert measured_ratios(study) == {"A100": seen}
    (line,) = measured_ratio_lines(measured_ratios(study))
    assert line.startswith("oversubscription measured on A100: work at once 0.") and " at ratio 1 (" in line
    assert audit(list(study.journal.entries("ratios"))).clean


def test_a_later_study_begins_at_the_ratio_that_an_earlier_one_found() -> None:
    first = packed()
    play(first, jobs_of(150), waits, kinds=KINDS)
    found = first.estimates.ratios.ratios()["A100"]
    later = devices_for(gpu(memory=200), stated={"memory": "1GB"}, past=first.estimates.new_measurements())
    later.update(later.inventory)
    assert later.learned_ratios == {"A100": found} and found > 1
    assert f"{found:g} times on A100" in later.news() and later.news() == "", "said once"
