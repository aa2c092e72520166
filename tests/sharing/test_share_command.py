"""``hpo share``, ``hpo list`` and ``hpo status`` of studies that share slots; the settings of ``share``."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpo_core.home import Home
from hpo_core.journal.sql import current_owner
from hpo_core.model.errors import SpecError
from hpo_core.pool.seat import PoolSeat, pool_of, terms_of
from hpo_core.pool.store import pools_of
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_flows.command import app
from tests.conftest import make_spec

SHARED = {"cluster": {"kind": "address", "address": "tcp://127.0.0.1:1"}}
HERE = f"tcp://127.0.0.1:1 on {current_owner().host}"
"""Its pool."""
WORKERS = tuple("abcdefgh")
SEARCH = {"method": "random", "configs": 50, "max_resource": 1}


def driven(home: Path, name: str, **share: Any) -> PoolSeat:
    """A study whose controller is this process, with its seat in the pool."""
    journal = Home(home).open_journal()
    study = Study.create(make_spec(study=name, search=SEARCH, share=share or True, **SHARED), journal)
    journal.claim(name, current_owner())
    seat = PoolSeat(pools_of(journal), terms_of(study.spec, current_owner()), study)
    seat.exchange(0.0, WORKERS)
    return seat


def hpo(home: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--home", str(home)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_list_and_status_say_share_use_demand_and_who_waits_for_whom(tmp_path: Path) -> None:
    driven(tmp_path, "first")
    second = driven(tmp_path, "second", weight=3)
    Study.create(make_spec(study="alone"), Home(tmp_path).open_journal())
    rows = {row["study"]: row for row in json.loads(hpo(tmp_path, "list", "--json"))}
    assert (rows["first"]["share"], rows["first"]["used"], rows["first"]["demand"]) == ("2/8", 8, 8)
    assert (rows["second"]["share"], rows["second"]["used"], rows["second"]["demand"]) == ("6/8", 0, 8)
    assert rows["alone"]["pool"] is None
    second.exchange(8.0, WORKERS)
    said = hpo(tmp_path, "status", "second")
    assert f"pool {HERE}: 6 of 8 workers (weight 3); holds 0, could use 8." in said
    assert "waits for 6 workers: first has more than the share and gives workers back as jobs end." in said
    assert "could use 2 more: the workers are shared with first by weight." in said
    assert "share: the slots of its cluster, weight 3, priority 0" in hpo(tmp_path, "show", "second")


def test_share_changes_what_a_running_study_publishes(tmp_path: Path) -> None:
    seat = driven(tmp_path, "s", weight=2)
    assert "weight 2, priority 0" in hpo(tmp_path, "share", "s")
    assert "weight 4.5, priority 0" in hpo(tmp_path, "share", "s", "--weight", "4.5")
    assert "weight 4.5, priority -3" in hpo(tmp_path, "share", "s", "--priority", "-3")
    seat.exchange(2.0, WORKERS)
    assert (seat.mine.weight, seat.mine.priority) == (4.5, -3)
    assert "does not run" not in hpo(tmp_path, "share", "s")
    seat.leave()
    assert "weight 4.5, priority -3 s does not run now; when it goes on, it begins with that." in hpo(
        tmp_path, "share", "s"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--weight", "0"], "from 0.001 to 1000"),
        (["--weight", "nan"], "from 0.001 to 1000"),
        (["--weight", "1e9"], "from 0.001 to 1000"),
        (["--priority", "101"], "from -100 to 100"),
    ],
)
def test_share_refuses_what_no_study_may_ask(tmp_path: Path, options: list[str], said: str) -> None:
    seat = driven(tmp_path, "s")
    result = CliRunner().invoke(app, ["share", "s", *options, "--home", str(tmp_path)])
    assert isinstance(result.exception, SpecError) and said in str(result.exception)
    seat.exchange(2.0, WORKERS)
    assert (seat.mine.weight, seat.mine.priority) == (1.0, 0)


def test_share_of_a_study_that_shares_nothing_is_refused(tmp_path: Path) -> None:
    Study.create(make_spec(study="alone"), Home(tmp_path).open_journal())
    result = CliRunner().invoke(app, ["share", "alone", "--weight", "2", "--home", str(tmp_path)])
    assert isinstance(result.exception, SpecError) and "shares its slots with nobody" in str(result.exception)


HOPPING = {"objective": "lab:train", "data": {"partitions": ["a.npz", "b.npz"]}}


@pytest.mark.parametrize(
    ("share", "more", "said"),
    [
        (True, {}, "share.pool is absent"),
        ({"pool": "a b"}, {}, "share.pool"),
        ({"pool": "../x"}, {}, "share.pool"),
        ({"pool": "p", "weight": 0}, {}, "share.weight"),
        ({"pool": "p", "weight": float("nan")}, {}, "share.weight"),
        ({"pool": "p", "weight": 1001}, {}, "share.weight"),
        ({"pool": "p", "priority": 101}, {}, "share.priority"),
        ({"pool": "p", "slots": 3}, {}, "share.slots: is no setting any more"),
        ({"pool": "p", "preempt": 60}, {}, "share.preempt: is no setting any more"),
        (True, HOPPING | SHARED, "share, and data"),
        ({"pool": "p"}, {"packing": True}, "share, and packing"),
        ({"pool": "p", "wieght": 2}, {}, "wieght"),
    ],
)
def test_a_share_that_makes_no_sense_is_refused(share: Any, more: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        make_spec(share=share, **more)


@pytest.mark.parametrize("other", ["packing", "data"])
def test_a_recorded_study_that_shared_devices_or_partitions_is_refused_in_words(other: str) -> None:
    plain = make_spec(share=True, **SHARED).plain()
    plain[other] = {"packing": make_spec(packing=True).plain()["packing"], "data": HOPPING["data"]}[other]
    with pytest.raises(SpecError, match=f"share, and {other}: .* read this study with the version that wrote it"):
        StudySpec.from_journal(plain)


def test_studies_are_in_one_pool_by_address_or_by_name_on_one_machine() -> None:
    def pool(host: str, share: Any, cluster: dict[str, Any]) -> str:
        return pool_of(make_spec(share=share, cluster=cluster), host)

    address = {"kind": "address", "address": "tcp://h:1"}
    assert pool("x", True, address) == pool("y", {"weight": 3}, address | {"address": "tcp://h:1/"})
    assert pool("x", True, address | {"address": "tls://h:1"}) != pool("x", True, address)
    assert pool("x", {"pool": "gpu"}, address) == "gpu"
    here = [pool("x", True, address | {"address": f"tcp://{name}:1"}) for name in ("localhost", "127.0.0.1", "[::1]")]
    assert here == ["tcp://127.0.0.1:1 on x"] * 3, "one scheduler, which other machines do not reach"
    local = {"kind": "local", "workers": 2}
    assert pool("x", {"pool": "cpu"}, local) != pool("y", {"pool": "cpu"}, local)


def test_example_of_the_page_prints_what_it_says() -> None:
    page = (Path(__file__).parents[2] / "docs/explanation/sharing.md").read_text()
    code, printed = re.findall(r"```(?:python|text)\n(.*?)```", page, re.DOTALL)[-2:]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/explanation/sharing.md", "exec"), {})
    assert out.getvalue() == printed
