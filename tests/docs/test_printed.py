"""What the documents say that a command prints is what it prints today: one small real study for all of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpo_core.home import Home
from hpo_core.journal.sql import current_owner
from hpo_core.model.devices.pool_member import Grant, Member
from hpo_core.pool.store import RowChange, pools_of
from hpo_core.study import Study
from hpo_flows.command import app
from tests.conftest import make_spec
from tests.docs.samples import Sample, is_printed, samples_in
from tests.docs.test_docs import PAGES, ROOT

FOLDER, HOME = "/home/me/sine", "/home/me/sine/.hpo"
"""Of the study in the pages."""
SAMPLES = [
    sample
    for page in PAGES
    if not page.is_relative_to(ROOT / "hpo_core")
    and not page.is_relative_to(ROOT / "flows")  # which hold drawings
    and page.parent.name not in ("how-to", "tutorials")  # which are followed, by test_pages.py
    for sample in samples_in(page, ROOT)
]


def samples(command: str) -> list[Sample]:
    return [sample for sample in SAMPLES if re.fullmatch(command, sample.command)]


def sample(command: str) -> Sample:
    (found,) = samples(command)
    return found


def check(shown: Sample, printed: str, replaced: dict[str, str] | None = None, *, exactly: bool = False) -> None:
    if not is_printed(shown, printed, replaced or {}, exactly=exactly):
        pytest.fail(f"{shown} shows\n\n{chr(10).join(shown.lines)}\n\nbut this is printed:\n\n{printed}", pytrace=False)


RUN_HERE = ["hpo status [ac]"]
"""Commands whose output a test below compares."""


def test_every_sample_of_output_is_compared_with_what_is_printed() -> None:
    """A new one needs a test here, and ``<!-- printed by: COMMAND -->`` above it; a drawing ``<!-- a drawing -->``."""
    unknown = [
        f"{shown.page}: {shown.lines[0]!r} by {shown.command!r}"
        for shown in SAMPLES
        if not any(re.fullmatch(command, shown.command) for command in RUN_HERE)
    ]
    assert not unknown, unknown
    for command in RUN_HERE:
        assert samples(command), f"no page shows what `{command}` prints"


def test_shapes_tell_words_layout_and_rounding_apart() -> None:
    shown = Sample("a.md", "x", ("...", "[3 done, ETA 2 s] trial 1: rest ...", "", "end in 1 min 3 s", "  rate = 0.25"))
    printed = "first\nsecond\n[48 done, ETA 1 min] trial 7: rest of it\n\nend in 12 s\n  rate = 0.5\n"
    assert is_printed(shown, printed, {})
    changed = {"ETA 1 min": "ETA 0:00", "  rate": " rate", "0.5": "0.11620646334520067", "end": "ends", "\n\n": "\n"}
    for before, after in changed.items():
        assert not is_printed(shown, printed.replace(before, after), {}), after
    assert not is_printed(shown, printed + "one more line\n", {})


def shared(home: Path, pool: str, members: dict[Member, tuple[str, ...]]) -> None:
    """Studies driven by this process, with what they say in a pool and what they hold there."""
    journal = Home(home).open_journal()
    for member, held in members.items():
        cluster = {"kind": "address", "address": member.cluster} if member.cluster else {"kind": "local"}
        name = {} if member.cluster else {"pool": "gpu"}
        spec = make_spec(study=member.study, cluster=cluster, share={"weight": member.weight, **name})
        Study.create(spec, journal)
        journal.claim(member.study, current_owner())
        change = RowChange(member, {member.study: Grant(held=held)})
        pools_of(journal).change(pool, member.study, lambda _, change=change: change)
    journal.close()


def slots(*numbers: int) -> tuple[str, ...]:
    return tuple(f"tcp://10.0.0.{6 + number // 2}:4000#{number % 2}" for number in numbers)


def slot_pool(home: Path) -> None:
    common: dict[str, Any] = {
        "cluster": "tcp://10.0.0.5:8786",
        "seen": 8,
        "kind": "worker slot",
        "usable": slots(*range(8)),
    }
    held = {"a": slots(0, 1, 2), "b": slots(3, 4), "c": slots(5, 6, 7)}
    more: dict[str, dict[str, Any]] = {"c": {"waited": 5.0, "weight": 2.0}}
    shared(home, "tcp://10.0.0.5:8786", {
        Member(study=name, demand=8, **common, **more.get(name, {})): mine for name, mine in held.items()
    })  # fmt: skip


def device_pool(home: Path) -> None:
    held = {"a": ("GPU-0",), "b": ("GPU-1",)}
    shared(home, "gpu on node7, whole devices", {
        Member(study=name, demand=2, seen=2, kind="device", usable=("GPU-0", "GPU-1")): mine
        for name, mine in held.items()
    })  # fmt: skip


@pytest.mark.parametrize(("name", "pool"), [("a", device_pool), ("c", slot_pool)])
def test_status_in_a_pool_says_what_is_written(name: str, pool: Callable[[Path], None], tmp_path: Path) -> None:
    pool(tmp_path)
    done = CliRunner().invoke(app, ["status", name, "--home", str(tmp_path)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    check(sample(f"hpo status {name}"), done.stdout)
