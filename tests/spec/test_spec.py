"""Bad study files: each message names place, value, rule and cure."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpo_core as hpo
from hpo_core import StudySpec, load_spec
from hpo_core.model.errors import SpecError
from tests.conftest import make_spec

GOOD = """
study: digits
objective: examples.digits.train:train
metric: {name: val_loss, mode: min}
space:
  learning_rate: {type: float, low: 1.0e-4, high: 1.0, log: true}
  layers: {type: int, low: 1, high: 4}
  batch_size: {type: ordinal, choices: [16, 32, 64]}
  optimizer: {type: categorical, choices: [sgd, adam]}
  momentum: {type: float, low: 0.0, high: 0.99, when: {optimizer: sgd}}
search: {method: asha, configs: 60, min_resource: 1, max_resource: 27, reduction_factor: 3}
sampler: {name: random}
seed: 1
cluster: {kind: local, workers: 2}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return path


def test_the_contract_of_the_issue_loads(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, GOOD))
    assert spec.study == "digits" and spec.search.method == "asha" and spec.cluster.kind == "local"
    assert str(tmp_path) in spec.pythonpath
    assert StudySpec.from_plain(spec.plain()) == spec


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("configs: 60", "confgs: 60", "study.yaml:11: search.confgs: unknown key; did you mean 'configs'?"),
        ("low: 1.0e-4, high: 1.0", "low: 2.0, high: 1.0", "low = 2.0 is larger than high = 1.0; swap them"),
        ("low: 1.0e-4, high: 1.0", "low: 0, high: 1.0", "log: true needs low > 0, got low = 0.0"),
        ("low: 1, high: 4", "low: a, high: 4", "study.yaml:7: space.layers.low: .*valid integer.*'a'"),
        ("low: 1, high: 4", "low: 1, high: 9223372036854775808", "must fit into 64 bits"),
        ("low: 1.0e-4, high: 1.0", "low: .nan, high: 1.0", "space.learning_rate.low: .*finite"),
        ("choices: [16, 32, 64]", "choices: [16, 16]", "choices holds 16 twice"),
        ("when: {optimizer: sgd}", "when: {optimiser: sgd}", "names 'optimiser', which is no parameter"),
        ("when: {optimizer: sgd}", "when: {optimizer: rms}", "optimizer = 'rms', a value that optimizer never takes"),
        ("min_resource: 1, max", "min_resource: 40, max", "min_resource = 40 is larger than max_resource = 27"),
        (
            "{method: asha, configs: 60, min_resource: 1, max_resource: 27, reduction_factor: 3}",
            "{method: sha, configs: 60}",
            "study.yaml:11: search.max_resource: is required and absent",
        ),
        ("train:train", "train", "objective: .* is no module:function, such as train:train"),
        ("study: digits", "study: a/b", "study: 'a/b' is no name: .*at most 100 characters"),
        ("kind: local, workers: 2", "kind: address, address: host", "has no protocol; write tcp://HOST:PORT"),
        ("workers: 2", "workers: {min: 5, max: 4}", "cluster.workers: min = 5 is larger than max = 4; swap them"),
        ("workers: 2", "workers: {min: true, max: 4}", "cluster.workers: min = true: a number belongs here"),
        (
            "kind: local, workers: 2",
            'kind: address, address: "tcp://h:1", workers: {min: 0, max: 4}',
            "cluster.workers: unknown key here, .* takes kind, address",
        ),
        (
            "seed: 1",
            "seed: 1\ntraining: {gang: 0}",
            r"^[^\n]*training\.gang: Input should be greater than or equal to 1, or 'auto' \(got 0\)$",
        ),
        ("seed: 1", "seed: 1\ntraining: {threads: [1]}", r"training\.threads: [^\n]*, or 'auto' \(got a list of 1\)$"),
        ("seed: 1", "seed: true", "seed = true: a number belongs here; give one"),
        ("low: 1.0e-4, high: 1.0", "low: false, high: 1.0", "low = false: a number belongs here"),
        ("seed: 1", "seed: 1\nseed: 2", "line 14: the key 'seed' stands twice; line 13 has it"),
        ("{type: int, low: 1, high: 4}", "{low: 1, high: 4}", "space.layers: 'type' is required and absent"),
        ("resource: 27", "resource: many", "max_resource: Input should be a valid integer .got .many..$"),
        ("{name: random}", "TPESampler", "sampler: a mapping belongs here.*'TPESampler'"),
        (
            "{name: random}",
            "'{name: random}'",
            r"sampler: a mapping .* no JSON: Expecting property name .* at character 2\. .*--set 'sampler=\{\"name\"",
        ),
        ("{name: random}", "{name: GridSampler}", "sampler GridSampler refuses these arguments"),
        (
            "{name: random}",
            "{name: GridSampler, search_space: 3}",
            "sampler: search_space is 3; write a list of values",
        ),
        ("{name: random}", "{name: random, gamma: 3}", "sampler random takes no arguments, got gamma; drop them"),
        ("when: {optimizer: sgd}", "when: {optimizer: []}", "lists no value"),
        ("seed: 1", "seed: 1\ntracking: {mlflow: http://h}", "tracking.mlflow: is 'on' or 'off'; name the server in"),
        ("seed: 1", "seed: 1\nscaling: {speedups: {1: 1.0}}", "speedups names 1 ranks; sizes must be from 2"),
        ("seed: 1", "seed: 1\nscaling: {speedups: {2: 3.0}}", r"speedups\[2\] = 3.0 must be above 0 and at most 2"),
        (
            "seed: 1",
            "seed: 1\nprefect: {tags: [a], tasks: rungs}",
            "which tasks = 'rungs' does not have; leave tags out",
        ),
        ("seed: 1", "seed: 1\n? [a]\n: 1", "line 14: a key is a list or a mapping; keys are text"),
        ("seed: 1", f"seed: 1\nconstants: {{a: {'[' * 80}{']' * 80}}}", "line 14: nested deeper than 20 levels"),
        (
            "seed: 1",
            "seed: 1\npythonpath: [~nobody-of-that-name/x]",
            "a path in pythonpath or data.folder leads nowhere",
        ),
        ("low: 1.0e-4, high: 1.0, log: true", "low: -1.7e308, high: 1.7e308", "is not finite; narrow the range"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in GOOD
    with pytest.raises(SpecError, match=expected) as caught:
        load_spec(write(tmp_path, GOOD.replace(old, new)))
    assert str(tmp_path / "study.yaml") in str(caught.value)


@pytest.mark.parametrize("kind", ["local", "slurm"])
def test_workers_are_a_number_or_a_range(tmp_path: Path, kind: str) -> None:
    text = GOOD.replace("kind: local, workers: 2", f"kind: {kind}, workers: {{min: 0, max: 8}}")
    spec = load_spec(write(tmp_path, text))
    assert spec.cluster == StudySpec.from_journal(spec.plain()).cluster and spec.cluster.size == 8
    assert spec.cluster.scales == hpo.WorkerRange(0, 8) and str(spec.cluster.scales) == "0 to 8"
    assert spec.plain()["cluster"]["workers"] == {"min": 0, "max": 8}
    one = load_spec(write(tmp_path, text.replace("min: 0", "min: 8")))
    assert one.plain()["cluster"]["workers"] == 8 and one.cluster.scales is None
    assert load_spec(write(tmp_path, text), ["cluster.workers.max=16"]).cluster.size == 16
    assert load_spec(write(tmp_path, GOOD), ['cluster.workers={"min": 1, "max": 4}']).cluster.size == 4


@pytest.mark.parametrize(
    ("beside", "why"),
    [
        ("training: {gang: 2}", "cluster.workers = 0 to 8, and training.gang = 2: .* come and go one by one"),
        ("training: {gang: 9}", "training.gang = 9 needs 9 slots at once, and cluster.workers gives 8"),
        ("training: {gang: auto}", "and training.gang = auto: .* set training.gang to 1"),
        ("packing: true", "cluster.workers = 0 to 8, and packing: .*or drop packing"),
        ("share: {pool: cpu}", "cluster.workers = 0 to 8, and share: .*or drop share"),
        ("data: {partitions: [a.pt, b.pt]}", "cluster.workers = 0 to 8, and data: .* takes its partitions along"),
    ],
)
def test_what_needs_certain_workers_needs_a_number_of_them(tmp_path: Path, beside: str, why: str) -> None:
    text = GOOD.replace("workers: 2", "workers: {min: 0, max: 8}")
    with pytest.raises(SpecError, match=why):
        load_spec(write(tmp_path, f"{text}{beside}\n"))


def test_yaml_as_people_write_it(tmp_path: Path) -> None:
    text = GOOD.replace("choices: [sgd, adam]", "choices: [sgd, on, no]").replace(
        "choices: [16, 32, 64]", "choices: [1e-4, 1e-3]"
    )
    spec = load_spec(write(tmp_path, text))
    assert spec.space["optimizer"].choices == ["sgd", "on", "no"]  # type: ignore[union-attr]
    assert spec.space["batch_size"].choices == [1e-4, 1e-3]  # type: ignore[union-attr]


def test_every_fault_is_listed(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(write(tmp_path, GOOD.replace("seed: 1", "sed: 1").replace("workers: 2", "workers: none")))
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("study: [", "is no YAML"),
        ("", "holds NoneType where a mapping"),
        ("- a", "holds list where a mapping"),
        ("a: 1", "metric: is required"),
    ],
)
def test_what_is_no_study(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        load_spec(write(tmp_path, text))


def test_complaints_about_foreign_configurations() -> None:
    space = make_spec().search_space()
    assert space.complaints({"x": 0.5, "c": "b"}) == []
    assert space.complaints({"x": 2.0, "c": "b", "d": 3, "y": 1}) == [
        "y is no parameter of this space",
        "x = 2.0 lies outside its range or choices",
        "d is given although its condition does not hold",
    ]
    assert space.complaints({"c": "a"}) == ["x is missing", "d is missing"]
