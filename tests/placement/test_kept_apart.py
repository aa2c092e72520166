"""Kinds of jobs that gain too little from sharing a device: how that is learned, and that they are kept apart."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core import MemoryJournal, Study, StudySpec
from hpo_core.execution.packed_placing import learn_from_journal
from hpo_core.journal.measurements import read_file, written
from hpo_core.model.devices.inventory import Inventory
from hpo_core.model.devices.measurement import Measurement, key_of
from hpo_core.model.devices.usage import Usage
from hpo_core.model.errors import SpecError
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.placement.demands import Estimates
from hpo_core.placement.demands.pair_speeds import GAIN, PairSpeeds
from hpo_core.placement.neighbours import Neighbours
from hpo_core.placement.packing.exact import Exact
from hpo_core.placement.packing.need import WaitingJob
from hpo_core.placement.packing.packing_policy import PackingPolicy
from hpo_core.placement.packing.reservations import WithReservations
from hpo_core.placement.packing.room import Room
from hpo_core.placement.shared_devices import SharedDevices
from hpo_core.replay.audit import audit
from hpo_core.views.measured_needs import found_apart, kept_apart_in, kept_apart_lines
from tests.placement.problems import ARCHITECTURES, assigned, check, cluster, waiting
from tests.placement.test_packing_laws import POLICIES
from tests.placement.test_shared_devices import GB, devices_for, gpu, job

KINDS = "abcd"


def with_kinds(rng: random.Random, jobs: list[WaitingJob], room: Room) -> tuple[list[WaitingJob], Room]:
    """Each job has a kind; some pairs of kinds, or a kind and itself, are kept apart on an architecture."""
    apart: dict[str, dict[str, frozenset[str]]] = {}
    for name in ARCHITECTURES:
        pairs = [pair for pair in itertools.combinations_with_replacement(KINDS, 2) if rng.random() < 0.4]
        apart[name] = {
            kind: frozenset(pair[0] if pair[1] == kind else pair[1] for pair in pairs if kind in pair) for kind in KINDS
        }
    named = []
    for one in jobs:
        kind = rng.choice(["", *KINDS])
        needs = {name: msgspec.structs.replace(need, kind=kind) for name, need in one.demand.items()}
        named.append(WaitingJob(one.key, needs))
    room = room.keep_apart(apart)
    for place in range(len(room.devices)):
        if rng.random() < 0.3:
            room.kinds[place].append(rng.choice(KINDS))
    return named, room


@pytest.mark.parametrize("policy", [*POLICIES.values(), Exact()], ids=[*POLICIES, "exact"])
def test_no_policy_puts_kinds_together_that_are_kept_apart(policy: PackingPolicy) -> None:
    clashes = 0
    for seed in range(12 if isinstance(policy, Exact) else 40):
        rng = random.Random(seed)
        plain, free = waiting(rng, 12), cluster(rng, nodes=1)
        jobs, room = with_kinds(rng, plain, free)
        chosen = policy.choose(jobs, room)
        check(jobs, room, chosen)
        clashes += chosen != policy.choose(plain, free)
        left = room.copy()
        for number, place in chosen:
            left.take(jobs[number].demand[room.devices[place].architecture], place)
        if not isinstance(policy, Exact):
            for number in {*range(len(jobs))} - {number for number, _ in chosen}:
                for place, device in enumerate(room.devices):
                    need = jobs[number].demand.get(device.architecture)
                    assert need is None or not left.fits(need, place), "and none waits that could begin"
    assert clashes, "the limit was met at all"


def test_exact_is_the_best_of_all_assignments_without_a_pair_that_is_kept_apart() -> None:
    for seed in range(15):
        rng = random.Random(seed)
        jobs, room = with_kinds(rng, waiting(rng, 5), cluster(rng, nodes=1))
        room = Room(room.devices[:2], {"node-0": room.cores[0]}).keep_apart(room.apart)
        best = 0
        for places in itertools.product(range(-1, len(room.devices)), repeat=len(jobs)):
            chosen = [(number, place) for number, place in enumerate(places) if place >= 0]
            try:
                check(jobs, room, chosen)
            except AssertionError:
                continue
            best = max(best, assigned(jobs, room, chosen))
        found = Exact().choose(jobs, room)
        check(jobs, room, found)
        assert assigned(jobs, room, found) == best, f"seed {seed}"


@given(seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_one_that_is_kept_apart_from_all_that_run_begins_in_the_end(seed: int) -> None:
    rng = random.Random(seed)
    empty = cluster(rng, nodes=1)
    names = {device.architecture for device in empty.devices}
    apart = {name: {"a": frozenset("b"), "b": frozenset("a")} for name in names}
    policy = WithReservations(rng.choice(list(POLICIES.values())), empty, patience=4)
    one = next(iter(waiting(rng, 1))).demand
    need = msgspec.structs.replace(next(iter(one.values())), compute=100, memory=0, cores=0) if one else None
    if need is None:
        return
    room = empty.keep_apart(apart)
    loner = WaitingJob("a", dict.fromkeys(names, msgspec.structs.replace(need, kind="a")))
    other = msgspec.structs.replace(need, kind="b", seconds=99.0)
    running = []
    for place in range(len(room.devices)):
        room.take(other, place)
        running.append(place)
    for step in range(300):
        jobs = [
            loner,
            WaitingJob(step, dict.fromkeys(names, other)),
            WaitingJob((step, 1), dict.fromkeys(names, other)),
        ]
        chosen = policy.choose(jobs, room)
        check(jobs, room, chosen)
        if 0 in {number for number, _ in chosen}:
            return
        for _, place in chosen:
            room.take(other, place)
            running.append(place)
        if running:
            room.give_back(other, running.pop(0))
    raise AssertionError("it never began")


# What is learned.


def attempt(key: str, seconds: float, alone: float, beside: Mapping[str, float]) -> Measurement:
    return Measurement(
        objective="m:f", code="", architecture="A100", params={"k": key}, unit_seconds=seconds, alone=alone,
        beside=tuple(beside.items()),
    )  # fmt: skip


def speeds_of(found: list[Measurement]) -> PairSpeeds:
    pairs = PairSpeeds()
    for one in found:
        pairs.add(one.architecture, one.params["k"], one, one.beside)
    return pairs


def test_speeds_beside_each_other_are_found_from_attempts_that_shared_a_part_of_their_time() -> None:
    """Independent: times are made from known speeds, by how long each attempt was beside the other."""
    true = {("a", "b"): 0.4, ("b", "a"): 0.5, ("a", "a"): 0.8, ("b", "b"): 0.6}
    alone_seconds = {"a": 2.0, "b": 7.0}
    rng = random.Random(1)
    found = [attempt(kind, alone_seconds[kind], 1.0, {}) for kind in "ab"]
    for (own, other), speed in true.items():
        for _ in range(30):
            alone = rng.uniform(0, 0.7)
            mean = alone + (1 - alone) * speed
            found.append(attempt(own, alone_seconds[own] / mean * rng.gauss(1, 0.01), alone, {other: 1 - alone}))
    pairs = speeds_of(found)
    for (own, other), speed in true.items():
        assert pairs.speed("A100", own, other) == pytest.approx(speed, abs=0.03)
    (kept,) = pairs.kept_apart()
    assert (kept.one, kept.other, kept.together) == ("a", "b", pytest.approx(0.9, abs=0.03))
    assert pairs.apart() == {"A100": {"a": frozenset("b"), "b": frozenset("a")}}
    rng.shuffle(found)
    assert speeds_of(found).kept_apart() == [kept], "in any order"


def test_jobs_that_keep_a_device_busy_are_found_out_when_many_share_it() -> None:
    """Of k jobs that compute in turn each is k times as slow: a neighbour adds the time of one alone, whatever k is."""
    found = [attempt("a", 1.0, 1.0, {})]
    found += [attempt("a", float(count), 0.0, {"a": count - 1.0}) for count in (2, 3, 4, 6) for _ in range(5)]
    (kept,) = speeds_of(found).kept_apart()
    assert kept.together == pytest.approx(1.0, abs=0.02) and kept.attempts >= 20


def test_a_pair_is_not_judged_before_it_was_seen_often_enough_both_ways() -> None:
    bad = [attempt("a", 1.0, 1.0, {}), attempt("b", 1.0, 1.0, {})]
    for _ in range(7):
        bad.append(attempt("a", 4.0, 0.0, {"b": 1.0}))
        assert speeds_of(bad).apart() == {}, "nothing is known of b beside a"
    for count in range(1, 4):
        bad.append(attempt("b", 4.0 + count / 100, 0.0, {"a": 1.0}))
        assert bool(speeds_of(bad).apart()) is (count == 3)
    half = [attempt("a", 1.0, 1.0, {})] + [attempt("a", 4.0, 0.5, {"a": 0.5}) for _ in range(5)]
    assert speeds_of(half).apart() == {}, "five halves are not three attempts"
    assert speeds_of([*half, half[-1]]).apart()


def test_without_one_alone_nothing_looks_slower_than_it_is() -> None:
    """The fastest stands for one alone: equal times say nothing, and unequal ones only what they differ by."""
    assert speeds_of([attempt("a", 4.0, 0.0, {"a": 3.0}) for _ in range(9)]).apart() == {}
    slow = [attempt("a", 4.0, 0.0, {"b": 1.0}) for _ in range(5)] + [attempt("a", 1.2, 0.0, {"c": 1.0})] * 3
    assert 0.25 < (speeds_of(slow).speed("A100", "a", "b") or 0) < 0.45
    assert speeds_of(slow[:2]).speed("A100", "a", "b") is None, "two attempts bound nothing"


def test_what_says_nothing_of_neighbours_is_left_out() -> None:
    pairs = PairSpeeds()
    for one in (
        Measurement(objective="m:f", code="", architecture="A100", params={}, unit_seconds=1.0),
        Measurement(objective="m:f", code="", architecture="A100", params={}, unit_seconds=0.0, alone=1.0),
        Measurement(
            objective="m:f", code="", architecture="A100", params={}, unit_seconds=1.0, alone=1.0, out_of_memory=5
        ),
    ):
        pairs.add("A100", "a", one, [])
    assert pairs.kept_apart() == [] and pairs.apart() == {}


# Who was beside whom.


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_neighbours_are_those_of_each_moment(seed: int) -> None:
    """A judge of its own: looks at every second."""
    rng = random.Random(seed)
    spans = []
    for trial in range(rng.randint(2, 8)):
        begin = rng.randint(1, 200)
        spans.append((trial, rng.choice("xy"), begin, begin + rng.randint(1, 150)))
    neighbours = Neighbours()
    moments = sorted([(begin, 1, one) for one in spans for begin in [one[2]]] + [(one[3], 0, one) for one in spans])
    for at, is_begin, (trial, device, begin, end) in moments:
        if is_begin:
            neighbours.begin(job(trial), device, compute=100 + trial, now=float(at))
            continue
        startup = rng.choice([0, 1])
        report = Report(trial=trial, attempt=0, outcome=Outcome.COMPLETED, started=begin, ended=end)
        usage, found = neighbours.judge(report, Usage(startup_seconds=startup))
        neighbours.end((trial, 0))
        ticks = range(begin + startup, end)
        if not ticks:
            assert usage.alone is None and not found
            continue
        there = {
            other: sum(since <= tick < until for tick in ticks) / len(ticks)
            for other, where, since, until in spans
            if other != trial and where == device
        }
        busy = sum(any(s <= t < u for o, w, s, u in spans if o != trial and w == device) for t in ticks) / len(ticks)
        assert usage.alone == pytest.approx(1000 * (1 - busy), abs=1.01)
        assert dict(usage.beside) == pytest.approx({o: 1000 * part for o, part in there.items() if part}, abs=1.01)
        assert [(one.trial, permille) for one, permille in found] == list(usage.beside)
        load = 100 + trial + sum((100 + other) * part for other, part in there.items())
        assert usage.load == pytest.approx(load, abs=0.51)


def test_of_an_attempt_without_times_nothing_is_said() -> None:
    neighbours = Neighbours()
    neighbours.begin(job(0), "x", compute=100, now=None)
    neighbours.begin(job(1), "x", compute=100, now=None)
    usage, _ = neighbours.judge(Report(trial=0, attempt=0, outcome=Outcome.LOST), Usage())
    assert usage.alone is None
    neighbours.end((0, 0))
    usage, _ = neighbours.judge(Report(trial=1, attempt=0, outcome=Outcome.COMPLETED, started=1.0, ended=2.0), Usage())
    assert usage.alone == 1000, "one whose times nobody knows is no neighbour"


# In the placement.


def played(
    placer: SharedDevices,
    jobs: list[Job],
    speeds: Mapping[tuple[int, int], float],
    *,
    now: float = 1.0,
    tell: Callable[[Report], object] = lambda report: None,
) -> list[Usage]:
    """Runs jobs of 10 s alone on one device, two at most, at these speeds beside each other; usages as they end."""
    waiting, usages = list(jobs), []
    running: dict[int, tuple[Job, float, float]] = {}
    while waiting or running:
        placed = placer.place(waiting[:8], now=now).begun
        waiting = [one for one in waiting if one.key not in {begun.key for begun, _ in placed}]
        running |= {one.trial: (one, now, 10.0) for one, _ in placed}
        rates = {}
        for trial, (one, _, _) in running.items():
            others = [other.params["width"] for number, (other, _, _) in running.items() if number != trial]
            rates[trial] = speeds[one.params["width"], others[0]] if others else 1.0
        passed, first = min((left / rates[trial], trial) for trial, (_, _, left) in running.items())
        now += passed
        running = {trial: (one, at, left - passed * rates[trial]) for trial, (one, at, left) in running.items()}
        one, began, _ = running.pop(first)
        seen = Usage(device_memory=GB, compute=0.1, cores=0.1, unit_seconds=(now - began) / 3)
        report = Report(trial=one.trial, attempt=0, outcome=Outcome.COMPLETED, started=began, ended=now, usage=seen)
        told = placer.judge(report)
        tell(told)
        judged = told.usage
        assert isinstance(judged, Usage) and judged.alone is not None
        usages.append(judged)
        placer.release(one.key)
    return usages


SPEEDS = {(1, 1): 0.9, (2, 2): 0.9, (1, 2): 0.45, (2, 1): 0.45}
STATED = {"memory": "1GB", "compute": 10, "cores": 0}


def mixed_pairs(learn: bool) -> tuple[SharedDevices, int, int]:
    """(placer, attempts that were slowed down by an unlike one among the first 20 of 60, among the last 20)."""
    placer = devices_for(gpu(), packing={"most": 2, "learn_pairs": learn, "look_ahead": 8}, stated=dict(STATED))
    for width in (1, 2):
        played(placer, [job(60 + width, width=width)], SPEEDS)  # alone, as at the end of an earlier study
    usages = played(placer, [job(number, width=1 + number % 2) for number in range(60)], SPEEDS, now=1000.0)
    slow = [usage.unit_seconds > 10 / 3 / 0.7 for usage in usages]
    return placer, sum(slow[:20]), sum(slow[-20:])


def test_kinds_that_lose_beside_each_other_are_kept_apart_once_that_was_seen() -> None:
    placer, early, late = mixed_pairs(learn=True)
    assert early >= 6 and late <= 2
    (kept,) = placer.estimates.pairs.kept_apart()
    assert (kept.one, kept.other) == ('{"width":1}', '{"width":2}') and kept.together < GAIN
    _, _, late = mixed_pairs(learn=False)
    assert late >= 15


def test_a_later_study_keeps_apart_what_an_earlier_one_measured() -> None:
    first, _, _ = mixed_pairs(learn=True)
    history = first.estimates.new_measurements()
    again = devices_for(gpu(), packing={"most": 2, "learn_pairs": True}, stated=dict(STATED), past=history)
    (one,) = again.place([job(0, width=1)]).begun
    assert again.place([job(1, width=2)]).begun == [] and len(again.place([job(2, width=1)]).begun) == 1
    assert one
    off = devices_for(gpu(), packing={"most": 2, "learn_pairs": False}, stated=dict(STATED), past=history)
    assert len(off.place([job(0, width=1), job(1, width=2)]).begun) == 2
    other = devices_for(gpu(kind="H100"), packing={"most": 2, "learn_pairs": True}, stated=dict(STATED), past=history)
    assert len(other.place([job(0, width=1), job(1, width=2)]).begun) == 2, "of this architecture nothing is known"


def test_one_of_each_kind_is_measured_alone_where_that_is_asked_for() -> None:
    """Without it jobs that always share say nothing: nobody knows how fast they would be."""
    jobs = [job(number, width=1 + number % 2) for number in range(60)]
    never = devices_for(gpu(), packing={"most": 2, "learn_pairs": True}, stated=dict(STATED))
    assert not any(usage.alone == 1000 for usage in played(never, jobs, SPEEDS)[:-1])
    assert never.estimates.pairs.kept_apart() == []
    placer = devices_for(
        gpu(), packing={"most": 2, "learn_pairs": True, "measure_alone": True}, patience=4, stated=dict(STATED)
    )
    usages = played(placer, jobs, SPEEDS)
    whole = [usage for usage in usages if usage.share and usage.share[0] == 1000]
    assert [usage.alone for usage in whole] == [1000, 1000], "one of each kind"
    assert len(placer.estimates.pairs.kept_apart()) == 1


def test_one_that_began_before_a_pair_was_known_keeps_others_away_too() -> None:
    first, _, _ = mixed_pairs(learn=True)
    placer = devices_for(gpu(), packing={"most": 2, "learn_pairs": True}, stated=dict(STATED))
    placer.place([job(0, width=1)])
    for one in first.estimates.new_measurements():
        used = Usage(device_memory=GB, unit_seconds=one.unit_seconds, alone=round(1000 * (one.alone or 0)))
        beside = [(msgspec.json.decode(key), round(1000 * number)) for key, number in one.beside]
        placer.estimates.learn(one.params, used, at=one.measured_at, architecture="A100", beside=beside)
    placer.update(Inventory((gpu(),)))
    assert placer.place([job(1, width=2)]).begun == []


def test_a_resumed_study_knows_from_its_journal_what_it_had_learned() -> None:
    study = Study.create(
        StudySpec.from_plain(
            {
                "study": "pairs",
                "objective": "lab:train",
                "metric": {"name": "loss", "mode": "min"},
                "space": {"width": {"type": "ordinal", "choices": [1, 2]}},
                "search": {"method": "random", "configs": 60, "max_resource": 3},
                "packing": {"most": 2, "learn_pairs": True},
            }
        ),
        MemoryJournal(),
    )
    placer = devices_for(gpu(), packing={"most": 2, "learn_pairs": True}, stated=dict(STATED))
    jobs = study.set_capacity(Inventory.of(60))

    def tell(report: Report) -> None:
        study.tell_report(msgspec.structs.replace(report, metrics={"loss": 1.0}))

    alone = [next(one for one in jobs if one.params["width"] == width) for width in (1, 2)]
    for number, one in enumerate(alone):
        played(placer, [one], SPEEDS, now=1.0 + 100 * number, tell=tell)
    played(placer, [one for one in jobs if one not in alone], SPEEDS, now=1000.0, tell=tell)
    learned = placer.estimates.pairs.kept_apart()
    assert learned
    again = Estimates(objective="m:f", code="c", study="s", by=("width",))
    learn_from_journal(Study.open("pairs", study.journal, reading=True), again)
    assert again.pairs.kept_apart() == learned
    assert kept_apart_in(study) == learned
    (line,) = kept_apart_lines(learned)
    assert line.startswith("kept apart on A100: width=1 and width=2, together 0.9")
    assert audit(list(study.journal.entries("pairs"))).clean


@pytest.mark.parametrize("form", ["json", "csv"])
def test_neighbours_go_to_a_file_and_back(form: Literal["json", "csv"], tmp_path: Path) -> None:
    kinds = {key_of({"width": 2, "name": 'a,"b"'}): 0.75, "sha256:" + "0" * 64: 1.5}
    one = msgspec.structs.replace(attempt("k", 1.0, 0.25, kinds), code="0" * 64)
    plain = msgspec.structs.replace(one, alone=None, beside=())
    file = tmp_path / f"needs.{form}"
    file.write_text(written([one, plain], form))
    assert read_file(file, now=0.0) == [one, plain]
    file.write_text(file.read_text().replace("1.5", "-1.5"))
    with pytest.raises(SpecError, match=r"measurement 1: .*beside has -1.5"):
        read_file(file, now=0.0)


def test_the_history_says_which_kinds_are_kept_apart_and_why() -> None:
    kind = key_of({"width": 8})
    shared = attempt("", 4.0, 0.0, {kind: 1.0})
    history = [attempt("", 1.0, 1.0, {}), *[shared] * 5]
    history = [msgspec.structs.replace(one, params={"width": 8}, code="c") for one in history]
    (found,) = found_apart(history)
    assert (found.objective, found.code) == ("m:f", "c")
    assert kept_apart_lines([found.kept_apart] * 10)[0] == (
        "kept apart on A100: two of width=8, together 0.50 times as fast as one alone (0.25 + 0.25, 5 attempts)"
    )
    assert kept_apart_lines([found.kept_apart] * 10)[8:] == ["and 2 more pairs kept apart"]


def test_measurements_with_neighbours_are_kept_once_and_told_apart_by_key() -> None:
    one = attempt(key_of({"width": 1}), 1.0, 0.25, {key_of({"width": 2}): 0.75})
    again = msgspec.json.decode(msgspec.json.encode(one), type=Measurement)
    assert again == one and again.identity == one.identity
    old = Measurement(objective="m:f", code="", architecture="A100", params={}, unit_seconds=1.0)
    assert b"alone" not in msgspec.json.encode(old) and b"beside" not in msgspec.json.encode(old)
    for wrong in ((("k", -1.0),), (("k" * 501, 1.0),), (("k", float("nan")),), tuple((str(n), 1.0) for n in range(17))):
        with pytest.raises(ValueError, match="beside"):
            Measurement(objective="m:f", code="", architecture="A100", params={}, beside=wrong)
