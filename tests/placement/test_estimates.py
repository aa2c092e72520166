from __future__ import annotations

import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.model.devices.measurement import Measurement, Usage
from hpo_core.model.errors import SpecError
from hpo_core.packing.estimates import Estimate, Estimates
from hpo_core.packing.room import SharedDevice
from hpo_core.spec.packing import StatedDemand

GB = 10**9
A100 = SharedDevice(name="gpu-0", node="a", architecture="A100", memory=40 * GB)
CPU = SharedDevice(name="a", node="a", architecture="CPU", memory=64 * GB)
NODE_CORES = 32_000


def estimates(*past: Measurement, **given: Any) -> Estimates:
    settings: dict[str, Any] = {"objective": "m:f", "code": "c", "study": "s", "by": ("width", "batch")}
    return Estimates(**settings | given, past=past)


def on_gpu(memory: int | None, compute: float | None = 0.3, cores: float = 2.0, unit: float = 1.0) -> Usage:
    return Usage(
        memory=GB,
        cores=cores,
        startup_seconds=10.0,
        unit_seconds=unit,
        device_memory=memory,
        compute=compute,
        architecture="A100",
    )


def ask(found: Estimates, params: dict[str, Any], device: SharedDevice = A100, units: int = 1) -> Estimate:
    return found.of(params, units=units, device=device, node_cores=NODE_CORES, devices_on_node=2)


def test_a_measured_job_is_known_at_once_whatever_its_learning_rate() -> None:
    known = estimates()
    assert known.learn({"width": 64, "lr": 0.1}, on_gpu(3 * GB), at=1.0)
    assert known.learn({"width": 64, "lr": 0.2}, on_gpu(2 * GB, compute=0.5, cores=4.0, unit=3.0), at=2.0)
    found = ask(known, {"width": 64, "lr": 0.7}, units=5)
    assert found.source == "measured"
    assert found.need.memory == 3_150_000_000, "the largest, and 5 %"
    assert (found.need.compute, found.need.cores) == (400, 3000), "means"
    assert found.need.seconds == 10.0 + 5 * 2.0
    assert ask(known, {"width": 65}).source == "profile"
    assert ask(known, {"width": 64}, CPU).source == "profile", "another architecture"


def test_where_the_driver_is_silent_a_quarter_stands_in_and_is_named() -> None:
    known = estimates()
    known.learn({"width": 64}, on_gpu(None, compute=None), at=0.0)
    found = ask(known, {"width": 64})
    assert found.source == "measured"
    assert (found.need.memory, found.need.compute, found.need.cores) == (10 * GB, 250, 2000)


def test_a_guess_never_asks_for_more_than_the_device() -> None:
    known = estimates()
    known.learn({"width": 64}, on_gpu(39 * GB), at=0.0)
    assert ask(known, {"width": 64}).need.memory == 40 * GB
    known.raise_after_out_of_memory({"width": 1}, "A100", had=30 * GB, at=0.0)
    assert ask(known, {"width": 1}).need.memory == 40 * GB
    small = SharedDevice(name="gpu-1", node="a", architecture="A100", memory=20 * GB)
    assert ask(known, {"width": 64}, small).need.memory == 39 * GB, "what was measured does not fit there"
    assert ask(known, {"width": 1}, small).need.memory == 30 * GB, "what failed does not fit there"


def test_what_is_stated_wins_part_by_part() -> None:
    stated = StatedDemand({"compute": 30}, lambda params: {"memory": 2 * GB + 10_000_000 * params["batch"]})
    known = estimates(stated=stated)
    params = {"width": 64, "batch": 100}
    found = ask(known, params, units=3)
    assert found.source == "stated"
    assert (found.need.memory, found.need.compute, found.need.cores) == (3 * GB, 300, 4000)
    known.learn(params, on_gpu(30 * GB, compute=0.9), at=0.0)
    found = ask(known, params, units=3)
    assert (found.need.memory, found.need.compute, found.need.cores) == (3 * GB, 300, 2000)
    known.raise_after_out_of_memory(params, "A100", had=31 * GB, at=1.0)
    assert ask(known, params).need.memory == 40 * GB, "running out of memory says more than a statement"


def test_attempts_that_trained_nothing_teach_nothing() -> None:
    known, key = estimates(), {"width": 64}
    assert not known.learn(key, Usage(), at=0.0)
    assert not known.learn(key, Usage(memory=GB, startup_seconds=3.0), at=0.0)
    assert ask(known, key, CPU).source == "profile"
    assert known.new_measurements() == []


def test_what_a_study_learned_is_the_past_of_the_next_one() -> None:
    first, key = estimates(), {"width": 64, "batch": 16, "lr": 0.3}
    first.learn(key, on_gpu(3 * GB), at=5.0)
    first.raise_after_out_of_memory(key, "A100", had=4 * GB, at=6.0)
    kept = first.new_measurements()
    assert first.new_measurements() == []
    assert [one.params for one in kept] == [{"batch": 16, "width": 64}] * 2, "what does not decide is not kept"
    second = estimates(*kept, study="t")
    assert ask(second, key) == ask(first, key)
    assert second.new_measurements() == []
    assert ask(estimates(*kept, code="edited"), key).source == "profile"
    resumed = estimates(*kept)
    resumed.learn(key, on_gpu(3 * GB), at=5.0)
    resumed.raise_after_out_of_memory(key, "A100", had=4 * GB, at=6.0)
    assert resumed.new_measurements() == [], "learned again from the journal, nothing is counted twice"
    assert ask(resumed, key) == ask(first, key)


def test_a_running_profile_counts_until_one_of_its_key_has_ended() -> None:
    known, key = estimates(), {"width": 64}
    known.learn({"width": 1}, on_gpu(GB, unit=7.0), at=1.0)
    known.new_measurements()
    assert not known.observe(key, on_gpu(None), architecture="A100"), "no memory was seen"
    assert ask(known, key).source == "profile"
    assert known.observe(key, on_gpu(2 * GB, compute=0.4, unit=0.0), architecture="A100")
    assert ask(known, key).need.seconds == 17.0, "it has trained no whole unit: in the mean of all"
    assert known.observe(key, on_gpu(GB, compute=0.2), architecture="A100")
    found = ask(known, key)
    assert known.is_known(key, "A100")
    assert found.source == "measured"
    assert (found.need.memory, found.need.compute) == (2_100_000_000, 200), "the peak, and the rest as seen last"
    assert known.new_measurements() == []
    known.learn(key, on_gpu(3 * GB, compute=0.6), at=5.0)
    assert (ask(known, key).need.memory, ask(known, key).need.compute) == (3_150_000_000, 600)
    known.observe(key, on_gpu(9 * GB), architecture="A100")
    assert ask(known, key).need.memory == 3_150_000_000
    assert [one.measured_at for one in known.new_measurements()] == [5.0]


def test_credentials_in_a_constant_are_not_kept() -> None:
    known = estimates(by=("width", "data"))
    params = {"width": 64, "data": "postgresql://me:pw-of-mine@host/images?password=pw-of-mine"}
    known.learn(params, on_gpu(GB), at=0.0)
    (kept,) = known.new_measurements()
    assert "pw-of-mine" not in kept.key and "host/images" in kept.key
    assert known.is_known(params, "A100")
    assert estimates(kept, by=("width", "data")).is_known(params, "A100")


def test_a_function_without_an_answer_is_as_good_as_nothing_stated_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stated = StatedDemand({"cores": 3}, lambda params: {"memory": 4 * GB // params["width"]})
    known = estimates(stated=stated)
    found = [ask(known, {"width": width}) for width in (0, 2, 0, 0)]
    assert [one.source for one in found] == ["profile", "stated", "profile", "profile"]
    assert [one.need.memory for one in found] == [40 * GB, 2 * GB, 40 * GB, 40 * GB]
    assert [one.need.cores for one in found] == [3000] * 4, "what is stated of all counts"
    (said,) = caplog.messages
    assert "packing.demand.function of {'width': 0} raised ZeroDivisionError" in said
    known.learn({"width": 0}, on_gpu(5 * GB), at=1.0)
    assert ask(known, {"width": 0}).need.memory == 5_250_000_000, "as measured"


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "returned None; it must return amounts by name"),
        ({"memroy": 1}, "unknown part 'memroy'; did you mean 'memory'?"),
        ({"memory": "2GB * 3"}, "must be a number, 0 or more, or an amount such as 6GB"),
        ({"memory": -1}, "must be a number, 0 or more"),
        ({"compute": 300}, "at most 100"),
    ],
)
def test_a_function_that_returns_no_amounts_is_told_what_to_return(returned: Any, said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        StatedDemand({}, lambda params: returned).of({"width": 1})


WIDTHS = st.sampled_from([2**power for power in range(10)])
ATTEMPTS = st.lists(
    st.tuples(WIDTHS, st.integers(1, 80 * GB), st.sampled_from([False, False, False, True])), min_size=1, max_size=60
)  # width, bytes, whether it ran out of them


def learned(attempts: list[tuple[int, int, bool]]) -> Estimates:
    known = estimates()
    for at, (width, memory, failed) in enumerate(attempts):
        if failed:
            known.raise_after_out_of_memory({"width": width}, "A100", had=memory, at=float(at))
        else:
            known.learn({"width": width}, on_gpu(memory), at=float(at))
    return known


@settings(max_examples=25, deadline=None)
@given(ATTEMPTS, st.randoms(use_true_random=False))
def test_laws_of_memory(attempts: list[tuple[int, int, bool]], rng: random.Random) -> None:
    known = learned(attempts)
    other = attempts[:]
    rng.shuffle(other)
    shuffled = learned(other)
    for width in {width for width, _, _ in attempts}:
        found = ask(known, {"width": width})
        successes = [memory for one, memory, failed in attempts if one == width and not failed]
        failures = [memory for one, memory, failed in attempts if one == width and failed]
        assert found.need.memory >= max(successes + failures), "neither below a measured one nor below what failed"
        assert (found.source == "measured") == bool(successes)
        assert ask(shuffled, {"width": width}).need.memory == found.need.memory, "in any order"
        if failures and max(failures) > max(successes, default=0):
            assert found.need.memory >= min(2 * max(failures), A100.memory)
    grown = learned([*attempts, *attempts[:3]])
    for width in {width for width, _, failed in attempts if not failed}:
        assert ask(grown, {"width": width}).source == "measured", "more measurements never make it unknown"
