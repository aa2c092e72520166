"""The classes and arguments of ``hpo_core.tune`` are those of a study file: typed, documented, refused in words."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import mypy.api
import numpy
import pytest
import torch

import hpo_core as hpo
from hpo_core.model.settings import Part
from hpo_core.model.space import PARAMETER_TYPES
from hpo_core.search.recorded import RecordedSearch
from hpo_core.search.registry import SEARCH_METHODS
from hpo_core.spec.sections import AddressClusterSpec, Cluster, LocalClusterSpec

REPOSITORY = Path(__file__).parents[2]
OTHERWISE = {"study": "name", "metrics": "metric", "search": "method"}
"""Settings of a study file whose argument has another name."""
NO_CLASS = {LocalClusterSpec: "workers", AddressClusterSpec: "cluster", RecordedSearch: "hpo rerun makes it"}
"""Parts of a study that a plain argument stands for."""
UNSET = (inspect.Parameter.empty, None, False, (), "")


def parts() -> list[type[Part]]:
    """All classes that a study file is made of."""
    sections = [
        part
        for field in hpo.StudySpec.model_fields.values()
        for part in _classes(field.annotation)
        if issubclass(part, Part)
    ]
    return list(
        dict.fromkeys([hpo.StudySpec, *PARAMETER_TYPES, *SEARCH_METHODS, *get_args(get_args(Cluster)[0]), *sections])
    )


def _classes(annotation: Any) -> list[type]:
    if isinstance(annotation, type) and not get_args(annotation):
        return [annotation]
    return [one for inner in get_args(annotation) for one in _classes(inner)]


def test_every_setting_of_a_study_file_is_an_argument_with_the_same_default() -> None:
    arguments = inspect.signature(hpo.tune).parameters
    for name, field in hpo.StudySpec.model_fields.items():
        argument = arguments[OTHERWISE.get(name, name)]
        if field.is_required() or argument.default in UNSET:
            continue
        default = field.get_default(call_default_factory=True, validated_data={})
        known = default.tasks if isinstance(default, hpo.Prefect) else getattr(default, "name", default)
        assert argument.default == known, name
    assert all(argument.kind is not argument.VAR_KEYWORD for argument in arguments.values())


def test_every_argument_is_documented() -> None:
    for function in (hpo.tune, hpo.resume):
        arguments_of = (function.__doc__ or "").partition("Raises:")[0]
        documented = set(re.findall(r"^        (\w+): ", arguments_of, re.MULTILINE))
        arguments = set(inspect.signature(function).parameters)
        assert documented <= arguments
        if function is hpo.tune:
            assert documented == arguments


@pytest.mark.parametrize("part", parts(), ids=lambda part: part.__name__)
def test_every_part_of_a_study_is_a_public_class_that_a_notebook_documents(part: type[Part]) -> None:
    if part in NO_CLASS:
        return
    assert getattr(hpo, part.in_python()) is part
    assert part.in_python() in hpo.__all__
    assert part.__doc__
    for name, field in part.model_fields.items():
        if field.description:
            assert f"    {name}: {field.description}" in part.__doc__


def test_a_mistyped_public_name_is_suggested() -> None:
    done = subprocess.run([sys.executable, "-c", "import hpo_core as hpo; hpo.ASHA"], capture_output=True, text=True)
    assert "module 'hpo_core' has no attribute 'ASHA'. Did you mean: 'Asha'?" in done.stderr


def test_public_names_complete_before_they_are_used() -> None:
    assert set(hpo.__all__) <= set(dir(hpo))


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (lambda: hpo.Asha(config=3), "Asha: config: is no argument; did you mean 'configs'?"),  # type: ignore[call-arg]
        (lambda: hpo.Asha(60), "Asha: 1 values are given by position"),  # type: ignore[call-arg,arg-type,misc]
        (lambda: hpo.Asha(configs=0), "Asha: configs: Input should be greater than or equal to 1 (got 0)"),
        (lambda: hpo.Float(0, 1, log=True), "log: true needs low > 0"),
        (lambda: hpo.Float(0, 1, low=2), "Float: low is given twice"),  # type: ignore[misc]
        (lambda: hpo.Choice("a", dict), "Choice: choices.1: Input should be"),  # type: ignore[arg-type]
        (lambda: hpo.Choice("a", choices=["b"]), "Choice: choices is given twice"),
        (lambda: hpo.Sampler("TPESamplr"), "did you mean 'TPESampler'?"),
        (lambda: hpo.Slurm(memory="much"), "Slurm: memory: "),
    ],
)
def test_a_mistake_fails_where_it_is_written(written: Any, words: str) -> None:
    with pytest.raises(hpo.SpecError) as caught:
        written()
    assert words in str(caught.value)


def test_what_a_class_shows_is_python_that_makes_it_again() -> None:
    names = {name: getattr(hpo, name) for name in hpo.__all__}
    for written in (
        hpo.Float(1e-4, 1, log=True),
        hpo.Int(1, 9),
        hpo.Choice("relu", None, [1, 2]),
        hpo.Float(0.5, 1, when={"a": 1}),
        hpo.Asha(configs=60, max_resource=27),
        hpo.Sampler("TPESampler", n_startup_trials=3),
        hpo.Packing(demand=hpo.Demand(memory="2GB"), oversubscribe={"default": 2}),
    ):
        assert eval(repr(written), names) == written, repr(written)


def test_numbers_of_numpy_and_paths_are_taken_as_they_are() -> None:
    choice = hpo.Choice(*numpy.array([1, 2]), numpy.float64(0.5), numpy.str_("a"))
    assert [(type(one), one) for one in choice.choices] == [(int, 1), (int, 2), (float, 0.5), (str, "a")]
    assert hpo.Choice(["a", "b"]) == hpo.Choice("a", "b")
    assert hpo.Choice(numpy.array([1, 2])) == hpo.Choice(numpy.array(1), 2) == hpo.Choice(1, 2)
    assert hpo.Choice(torch.tensor([0.5, 1])) == hpo.Choice(0.5, 1.0)
    assert hpo.Int(numpy.int64(1), numpy.int64(3)) == hpo.Int(1, 3)
    assert hpo.Data(partitions="*.npz", folder=Path("/data")).folder == "/data"  # type: ignore[arg-type]


SAMPLE = """
import hpo_core as hpo


def train(trial: hpo.Trial) -> None:
    for step in trial.steps():
        trial.report(loss=trial.params["lr"] / (step + 1))


def study() -> hpo.TrialResult:
    result: hpo.Result = hpo.tune(
        train,
        space={
            "lr": hpo.Float(1e-4, 1, log=True),
            "width": hpo.Int(2, 64, step=2),
            "act": hpo.Choice("relu", None, 3, [1, 2]),
            "size": hpo.Choice(["small", "large"], type="ordinal"),
            "decay": hpo.Float(0, 1, when={"act": "relu"}),
        },
        metric=[hpo.Metric("loss"), hpo.Metric("accuracy", "max"), "size"],
        method=hpo.Asha(configs=60, max_resource=27, brackets=[0]),
        sampler=hpo.Sampler("TPESampler", n_startup_trials=3),
        cluster=hpo.Slurm(workers=4, cores=2, directives=["--partition=gpu"]),
        constraints=["memory"],
        start_with=[{"lr": 0.1}],
        packing=hpo.Packing(demand=hpo.Demand(memory="2GB"), oversubscribe={"default": 2}),
        data=hpo.Data(partitions=["a.npz", "b.npz"], validation="c/*.npz"),
        share=True,
        training=hpo.Training(threads="auto", retries={hpo.Outcome.ERROR: 1}),
        scaling=hpo.Scaling(speedups={2: 1.9}),
        stop=hpo.Stop(seconds=60),
        checkpoints=hpo.Checkpoints(max_count=3),
        tracking=hpo.Tracking(mlflow="off"),
        warm_start=hpo.WarmStart(studies=["before"]),
        max_seconds=60,
        callbacks=[lambda report: print(report.metrics)],
    )
    return result.best


METHODS = [
    hpo.Sha(configs=9, max_resource=9),
    hpo.Hyperband(max_resource=9),
    hpo.Pasha(configs=9, max_resource=9),
    hpo.Pbt(population=4, generations=3, perturb=[0.5, 2]),
    hpo.Random(configs=9),
    hpo.Grid(points={"lr": 3}),
]
CLUSTERS = [hpo.Slurm(cores=2), hpo.LocalCuda()]
SHARED = hpo.Share(pool="all", weight=2)
"""
MISTAKES = """
hpo.Asha(config=3)
hpo.tune(train, metrc="loss")
hpo.Float(low="a", high=1)
hpo.Choice("a", colour="red")
hpo.tune(train, mode="minimum")
"""


@pytest.mark.slow
def test_a_strict_type_checker_takes_all_classes_and_finds_mistakes(tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(SAMPLE + MISTAKES)
    options = ["--config-file", str(REPOSITORY / "pyproject.toml"), "--cache-dir", str(REPOSITORY / ".mypy_cache")]
    out, err, _ = mypy.api.run([*options, "--no-error-summary", "--hide-error-context", str(tmp_path / "sample.py")])
    found = [int(number) for number in re.findall(r"sample\.py:(\d+): error", out)]
    first = SAMPLE.count("\n") + 2
    assert sorted(set(found)) == list(range(first, first + 5)), out + err
