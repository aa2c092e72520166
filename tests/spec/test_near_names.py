"""Names that people mistype: each is answered by one rule, with what was meant or with what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import did_you_mean, meant_or_known, near_name
from tests.conftest import make_spec

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("typed", "known", "near"),
    [
        ("TPESampller", ["random", "GPSampler", "TPESampler"], "TPESampler"),
        ("lcoal", ["local", "local_cuda", "slurm"], "local"),
        ("minimum", ["min", "max"], "min"),
        ("highest", ["all_rungs", "highest_rung"], "highest_rung"),
        ("DIGITS", ["digits", "texts"], "digits"),
        ("nope", ["slots", "hours", "run", "never-left"], ""),
        ("lr", ["learning_rate", "x", "wd"], ""),
        ("", ["a", "b"], ""),
        ("elephants", ["world"], ""),
    ],
)
def test_near_is_a_slip_or_a_beginning(typed: str, known: list[str], near: str) -> None:
    assert near_name(typed, known) == near


def test_words_name_what_was_meant_or_what_there_is() -> None:
    assert did_you_mean("ahsa", ["asha", "random"]) == "did you mean 'asha'?" and did_you_mean("x", ["asha"]) == ""
    assert did_you_mean("/data/part-*", ["/data/part-*"]) == "", "what was written is no suggestion"
    assert meant_or_known("bayes", ["asha", "random"]) == "there are asha, random"
    assert meant_or_known("x", []) == "there are none"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sampler": {"name": "TPESampller"}}, "did you mean 'TPESampler'?"),
        ({"sampler": {"name": "TPESampler", "n_startup_trails": 3}}, "did you mean 'n_startup_trials'?"),
        ({"sampler": {"name": "optimal"}}, "is unknown: there are random, ranked_gp, .*; choose one of them"),
        ({"search": {"method": "hyperbnad"}}, "method = 'hyperbnad' is unknown: there are asha, .*mean 'hyperband'?"),
        ({"space": {"x": {"type": "flot"}}}, "type = 'flot' is unknown: there are float, .*mean 'float'?"),
        ({"cluster": {"kind": "cloud"}}, "kind = 'cloud' is unknown: there are local, .*; choose one of them"),
        ({"search": {"method": "asha", "variant": "stoping", "max_resource": 9}}, "did you mean 'stopping'?"),
        ({"serch": {}}, "serch: unknown key; did you mean 'search'?"),
        ({"cluster": {"kind": "slrum"}}, "did you mean 'slurm'?"),
        ({"packing": {"policy": "worst_fti"}}, "did you mean 'worst_fit'?"),
        ({"metric": {"name": "loss", "mode": "minimum"}}, "did you mean 'min'?"),
        ({"best_of": "highest"}, "did you mean 'highest_rung'?"),
        ({"forbidden": [{"xx": 1}]}, "did you mean 'x'?"),
        ({"search": {"method": "grid", "points": {"xx": 3}}}, "did you mean 'x'?"),
        ({"search": {"method": "pbt", "static": ["xx"]}}, "search.static: 'xx' is no parameter .*mean 'x'?"),
    ],
)
def test_a_name_in_a_study_file(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said.replace("?", r"\?")):
        make_spec(**changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"cluster": {"kind": "local_cuda", "workers": 2}},
            "cluster.workers: unknown key here, though other parts or methods take it; "
            "cluster with kind = local_cuda takes kind",
        ),
        ({"checkpoints": {"every": 3}}, "checkpoints.every: unknown key; checkpoints takes max_bytes, max_count, "),
        ({"colour": 3}, "colour: unknown key; the study takes study, objective, "),
        ({"search": {"method": "random", "points": 3}}, "search with method = random takes method, configs, "),
    ],
)
def test_a_key_that_is_near_to_none_is_told_what_its_place_takes(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        make_spec(**changes)


def test_one_rule_serves_all_names() -> None:
    """A second one would call near what this one does not; commands and options are answered by typer."""
    others = [
        str(path.relative_to(ROOT))
        for folder in ("hpo_core", "flows")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"difflib\.(?!unified_diff)|from difflib|get_close_matches", path.read_text())
    ]
    assert others == ["hpo_core/model/short_text.py"]
