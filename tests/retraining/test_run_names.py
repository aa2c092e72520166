"""What runs of ``retrain`` are called."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from uuid import uuid4

from hpo_flows.retrain import run_name


def test_two_runs_of_one_minute_have_two_names() -> None:
    night = datetime(2026, 11, 22, 3, 0, tzinfo=UTC)
    one, other = uuid4().hex[:-4] + "9f3a", uuid4().hex[:-4] + "9f3b"
    names = [run_name("digits", night, one), run_name("digits", night + timedelta(seconds=20), other)]
    assert names == ["retrain-digits-20261122-0300-9f3a", "retrain-digits-20261122-0300-9f3b"]
    berlin = night.astimezone(timezone(timedelta(hours=1)))
    assert run_name("digits", berlin, one) == names[0], "the time is UTC"
