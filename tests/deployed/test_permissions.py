"""What a person who may press Run may run, and how a form becomes a study."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints
from uuid import uuid4

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import validate
from pydantic import TypeAdapter, ValidationError

from hpo_core.home import Home
from hpo_core.model.errors import SpecError
from hpo_core.model.trial import Outcome
from hpo_core.search.registry import BY_NAME
from hpo_core.spec import StudySpec, load_spec
from hpo_core.spec.data import DataSpec
from hpo_core.spec.packing import DemandSpec, PackingSpec
from hpo_core.spec.sections import AddressClusterSpec, LocalClusterSpec, ShareSpec, TrainingSpec
from hpo_core.study import Study
from hpo_flows.compare import compare
from hpo_flows.deployed.flows import rerun, resume, tune, tune_file
from hpo_flows.deployed.form import (
    _ASKED_ELSEWHERE,
    SECTIONS,
    Choice,
    DaskScheduler,
    FilledIn,
    LocalWorkers,
    Number,
    as_drawn,
    drawn_section,
    read_form,
    study_of,
    with_changes,
)
from hpo_flows.deployed.form_schema import DEFAULT_METHOD, FOLD, Method, empty_tab
from hpo_flows.deployed.permissions import NotAllowedError, Permissions
from hpo_flows.deployed.prefilled import begun_as_drawn
from hpo_flows.deployed.study_runs import recorded_study
from hpo_flows.retrain import retrain
from hpo_flows.retraining_run import check_function
from tests.conftest import World, fresh, make_spec
from tests.deployed.filled_forms import filled_in

STUDY = """
study: inner
objective: models.net:fit
metric: {name: loss}
space: {x: {type: float, low: 0, high: 1}}
search: {method: random, configs: 3}
pythonpath: [%s]
"""


NET = """
import json
import os.path
import shutil as files
from functools import cache, partial
from json import loads
from os import remove as delete, system
from . import inner
from .inner import fit_inner, walk
from .listed import *
try:
    from os import getcwd as where
except ImportError:
    def where(): ...

def fit(trial): ...
def load(path): ...
@cache
def build(params): ...
class Net:
    def train(self): ...
class Callable:
    def __call__(self, trial): ...

fit_small = partial(fit, size=1)
fit_object = Callable()
fit_lambda = lambda trial: None
fit_alias = fit
fit_method = Net().train
fit_of_inner = inner.fit_inner
fit_either = fit if os.path else fit_inner
erase = os.remove
clear = files.rmtree
clear_alias = clear
read, erase_too = json.loads, os.unlink
either = fit if os.path else os.system
looked_up = getattr(os, "system")
one_of = [os.system][0]
typed: Callable
circle = other = circle
if True:
    from subprocess import run
with open(os.devnull) as opened, open(os.devnull) as _: ...
for each in (os.system,): ...
def later():
    global late
    late = os.system
late = fit
"""
INNER = """
from os import walk
def fit_inner(trial): ...
"""
LISTED = """
from os import abort
from json import dumps
from shutil import *
__all__ = ["on_purpose"]
__all__ += ("dumps",)
def on_purpose(trial): ...
"""
OWN = [
    *("fit", "load", "build", "Net", "fit_small", "fit_object", "fit_lambda", "fit_alias", "fit_inner", "fit_of_inner"),
    *("fit_either", "later", "on_purpose", "dumps"),
]
FOREIGN = [
    *(
        "loads",
        "delete",
        "system",
        "json",
        "inner",
        "os",
        "os.remove",
        "os.path.join",
        "files",
        "walk",
        "where",
        "erase",
    ),
    *("clear", "clear_alias", "read", "erase_too", "either", "looked_up", "one_of", "typed", "circle", "run", "opened"),
    *(
        "each",
        "late",
        "fit_method",
        "abort",
        "rmtree",
        "partial",
        "absent",
        "",
        "__builtins__",
        "Net.train",
        "inner.walk",
        "fit.__call__",
    ),
]


@pytest.fixture
def permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Permissions:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("raise RuntimeError('nothing is imported to look at it')")
    for name, code in {"net": NET, "inner": INNER, "listed": LISTED}.items():
        (tmp_path / "models" / f"{name}.py").write_text(code)
    folder = tmp_path / "studies"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.yaml").write_text(STUDY % tmp_path)
    (folder / "notes.yaml").write_text("just: notes")
    (tmp_path / "secret.yaml").write_text(STUDY % tmp_path)
    (folder / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (folder / "out").symlink_to(tmp_path)
    return Permissions(("models",), folder.resolve(), (tmp_path.resolve(),), ("tcp://dask:8786",))


def test_only_study_files_inside_the_folder_are_offered(permissions: Permissions) -> None:
    assert permissions.study_files() == ["deep/a.yaml"]
    assert permissions.known_objectives() == ["models.net:fit"]
    assert permissions.load("deep/a.yaml").study == "inner"


@pytest.mark.parametrize(
    "name", ["../secret.yaml", "deep/../../secret.yaml", "link.yaml", "out/secret.yaml", "/etc/hostname.yaml", "..", ""]
)
def test_paths_do_not_escape_the_folder(permissions: Permissions, name: str) -> None:
    with pytest.raises(NotAllowedError):
        permissions.load(name)


def test_no_folder_no_file() -> None:
    with pytest.raises(NotAllowedError, match="HPO_STUDY_FOLDER is not set"):
        Permissions(("models",)).load("a.yaml")


def test_nothing_is_allowed_unless_said() -> None:
    permissions = Permissions.of_environment({})
    assert not permissions.allows_objective("os:system")
    with pytest.raises(NotAllowedError, match="Allowed: none"):
        made(permissions)


@pytest.mark.parametrize("name", OWN)
def test_what_an_allowed_module_defines_or_lists_is_allowed(permissions: Permissions, name: str) -> None:
    assert permissions.allows_objective(f"models.net:{name}")


@pytest.mark.parametrize("name", FOREIGN)
def test_what_an_allowed_module_merely_imports_is_refused_everywhere(permissions: Permissions, name: str) -> None:
    """`data.load: models.net:remove` once deleted the partitions."""
    function = f"models.net:{name}"
    assert not permissions.allows_objective(function)
    spec = make_spec(objective="models.net:fit", data={"partitions": ["a"], "folder": str(permissions.folder)})
    assert spec.data is not None
    asked = [
        spec.model_copy(update={"objective": function}),
        spec.model_copy(update={"build": function}),
        spec.model_copy(update={"data": spec.data.model_copy(update={"load": function})}),
    ]
    permissions.check(spec)
    for one in asked:
        with pytest.raises(NotAllowedError, match=f"= '{re.escape(function)}' is not allowed here"):
            permissions.check(one)
    in_full = dataclasses.replace(permissions, objectives=("models", function))
    for one in asked:
        in_full.check(one)  # the operator's word


def test_a_refused_name_is_said_with_where_it_comes_from(permissions: Permissions) -> None:
    with pytest.raises(NotAllowedError, match="models.net has it from os:system, and does not list it in __all__"):
        permissions.check_function("objective", "models.net:system")
    with pytest.raises(NotAllowedError, match="'models.net' gives 'one_of' its value in a way that cannot be read"):
        permissions.check_function("objective", "models.net:one_of")
    with pytest.raises(NotAllowedError, match="there is no module 'models.absent' here"):
        permissions.check_function("objective", "models.absent:fit")


def test_modules_are_looked_for_where_they_are_imported_from(permissions: Permissions, tmp_path: Path) -> None:
    other = tmp_path / "other" / "models"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    (other / "net.py").write_text("from os import system as fit\ndef system(trial): ...\n")
    assert not permissions.allows_objective("models.net:fit", [str(other.parent)])
    assert permissions.allows_objective("models.net:system", [str(other.parent)])


@pytest.mark.parametrize("name", ["system", "walk"])
def test_an_evaluation_function_of_a_deployment_is_no_imported_one(
    permissions: Permissions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HPO_ALLOWED_OBJECTIVES", "models")
    monkeypatch.setenv("HPO_IMPORT_FOLDERS", str(tmp_path))
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", str(uuid4()))
    check_function("models.net:fit")
    with pytest.raises(NotAllowedError, match=f"evaluate = 'models.net:{name}' is not allowed here"):
        check_function(f"models.net:{name}")


def test_settings_are_read_from_the_environment(tmp_path: Path) -> None:
    permissions = Permissions.of_environment(
        {"HPO_ALLOWED_OBJECTIVES": " a, b.c:f ,", "HPO_STUDY_FOLDER": str(tmp_path), "HPO_IMPORT_FOLDERS": "/x:/y"}
    )
    assert permissions == Permissions(("a", "b.c:f"), tmp_path.resolve(), (Path("/x"), Path("/y")))


def test_where_an_allowed_name_is_imported_from_is_no_choice_of_the_run(
    permissions: Permissions, tmp_path: Path
) -> None:
    assert permissions.folder is not None
    (permissions.folder / "deep" / "a.yaml").write_text(STUDY % "/var/tmp")
    with pytest.raises(NotAllowedError, match="pythonpath = '/var/tmp' is not allowed"):
        permissions.load("deep/a.yaml")


def test_a_file_that_names_no_folder_is_imported_from_beside_it(
    permissions: Permissions, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run starts in an empty folder of its own, which no worker allows: every such file was refused."""
    assert permissions.folder is not None
    (permissions.folder / "plain.yaml").write_text(STUDY.partition("pythonpath")[0])
    monkeypatch.chdir(tmp_path_factory.mktemp("run"))
    assert permissions.load("plain.yaml").pythonpath == [str(permissions.folder)]
    monkeypatch.chdir(permissions.folder / "deep")
    assert permissions.load("plain.yaml").pythonpath == [str(permissions.folder), str(permissions.folder / "deep")]


def made(permissions: Permissions, cluster: LocalWorkers | DaskScheduler | None = None, **changes: Any) -> StudySpec:
    """The study of a form, as the flow makes it."""
    chosen = cluster or LocalWorkers(workers=3)
    fields: dict[str, Any] = {
        "objective": "models.net:fit",
        "numbers": [{"name": "rate", "low": 1e-4, "high": 1, "log": True}],
        "choices": [{"name": "kind", "values": ["sgd", "16", "true", "no", "1e-3", "'8'"]}],
        "method": DEFAULT_METHOD,
    }
    spec = filled_in(permissions, cluster=cluster, **(fields | changes))
    return with_changes(spec, "named", permissions, seed=4, cluster=chosen)


def test_what_needs_a_cluster_is_judged_by_the_one_that_was_chosen() -> None:
    permissions = Permissions(("models.net:fit",), clusters=("tls://a:1",))
    fields: dict[str, Any] = {
        "objective": "models.net:fit",
        "numbers": [{"name": "rate", "low": 1e-4, "high": 1, "log": True}],
        "method": DEFAULT_METHOD,
    }
    four = filled_in(permissions, cluster=LocalWorkers(workers=4), training={"gang": "4"}, **fields)
    assert (four.training.gang, four.cluster) == (4, LocalClusterSpec(workers=4))
    with pytest.raises(SpecError, match="training.gang = 4 needs 4 slots at once, and cluster.workers gives 3"):
        filled_in(permissions, cluster=LocalWorkers(workers=3), training={"gang": "4"}, **fields)
    at = DaskScheduler(address="tls://a:1")
    shared = filled_in(permissions, cluster=at, further={"share": "{weight: 2}"}, **fields)
    made = with_changes(shared, "one", permissions, seed=None, cluster=at)
    assert made.share is not None and (made.share.pool, made.share.weight) == (None, 2.0)
    with pytest.raises(SpecError, match="share.pool is absent"):
        filled_in(permissions, further={"share": "{weight: 2}"}, **fields)


def test_the_function_that_builds_the_model_needs_the_same_permission(permissions: Permissions) -> None:
    assert made(permissions).build is None
    assert made(permissions, further={"build": "models.net:build"}).build == "models.net:build"
    with pytest.raises(NotAllowedError, match="build = 'os:abort' is not allowed here"):
        made(permissions, further={"build": "os:abort"})


def test_limits_of_attempts_have_fields(permissions: Permissions) -> None:
    assert made(permissions).training == TrainingSpec()
    given = {"max_lost": 5, "stall_timeout": None, "worker_timeout": 90.0, "fail_fast": 2}
    training = made(permissions, training=given).training
    assert {name: getattr(training, name) for name in given} == given
    assert made(permissions, training={"max_lost": 0}).training.max_lost is None, "0 says none"
    assert made(permissions, training={"retries": "{error: 2}"}).training.allowed(Outcome.ERROR) == 2
    with pytest.raises(SpecError, match="max_lost"):
        made(permissions, training={"max_lost": -1})
    schema = drawn_section(SECTIONS["training"]).model_json_schema()["properties"]
    assert schema["max_lost"]["default"] == 3 and "abandoned" in schema["max_lost"]["description"]
    assert set(TrainingSpec.model_fields) == set(schema), "what is new in the study file is on the form"
    drawn = parameter_schema(tune).model_dump()["definitions"]["Attempts"]["properties"]
    assert drawn.keys() == schema.keys()


def test_everything_of_a_study_file_is_on_the_form(permissions: Permissions) -> None:
    on_form = set(parameter_schema(tune).model_dump()["definitions"]["Furthersettings"]["properties"])
    assert on_form | set(_ASKED_ELSEWHERE) == set(StudySpec.model_fields)
    assert "pythonpath" not in on_form, "where code comes from is the worker's"
    further = {"style": "handle", "metrics": "[{name: val_loss}, {name: size, mode: min}]", "warm_start": " "}
    spec = made(permissions, further=further)
    assert [metric.name for metric in spec.objectives] == ["val_loss", "size"] and spec.warm_start is None
    for text in ("{name: [", "loss"):
        with pytest.raises(SpecError, match="metrics"):
            made(permissions, further={"metrics": text})
    with pytest.raises(NotAllowedError, match="checkpoints.folder"):
        made(permissions, further={"checkpoints": "{folder: 's3://elsewhere'}"})


def test_packing_has_fields_of_its_own(permissions: Permissions) -> None:
    assert made(permissions).packing is None
    assert made(permissions, packing={}).packing == PackingSpec(), "an opened section that was left as it stood"
    filled = {"policy": "worst_fit", "job_memory": "2GB + 1MB * rate", "job_compute": "30", "job_cores": "", "by": "",
              "memory": "8GB", "oversubscribe": "{A100: 3}", "most": 4}  # fmt: skip
    packing = made(permissions, packing=filled).packing
    assert packing is not None and packing.policy == "worst_fit" and packing.most == 4
    assert packing.demand.stated() == {"memory": "2GB + 1MB * rate", "compute": 30}
    assert packing.memory == {"default": "8GB"} and packing.ratio("A100") == 3
    with pytest.raises(SpecError, match="packing.demand.memory"):
        made(permissions, packing={"job_memory": "2GB * depth"})
    schema = parameter_schema(tune).model_dump()
    first, _ = schema["definitions"]["Advanced"]["properties"]["packing"]["anyOf"]
    assert first == empty_tab("One job on each slot")
    drawn = schema["definitions"]["Packing"]["properties"]
    assert set(PackingSpec.model_fields) - {"demand"} <= set(drawn), "what is new in the study file is on the form"
    assert {name.removeprefix("job_") for name in drawn if name.startswith("job_")} == set(DemandSpec.model_fields)
    assert drawn["policy"]["enum"][0] == "fill" and "required" not in schema["definitions"]["Packing"]


def test_data_have_fields_of_their_own(permissions: Permissions, tmp_path: Path) -> None:
    allowed = dataclasses.replace(permissions, data_folder=tmp_path / "data")
    assert made(allowed).data is None
    data = made(allowed, data={"partitions": "*.npz", "scheduler": "randomized", "folder": "shards"}).data
    assert data is not None and data.partitions == "*.npz" and data.scheduler == "randomized"
    assert data.folder == str(tmp_path / "data" / "shards"), "relative to the deployment's folder of data"
    data = made(allowed, data={"partitions": "[b, {name: a, count: 3}]", "validation": "- v\n- w"}).data
    assert data is not None and data.folder == str(tmp_path / "data")
    assert [file.name for file in (*data.files, *data.validation_files)] == ["a", "b", "v", "w"]
    with pytest.raises(SpecError, match="data.partitions: is required"):
        made(allowed, data={"scheduler": "exact"})
    with pytest.raises(SpecError, match="partitions cannot be read as YAML"):
        made(allowed, data={"partitions": "[a"})
    schema = parameter_schema(tune).model_dump()
    first, _ = schema["definitions"]["Advanced"]["properties"]["data"]["anyOf"]
    assert first == empty_tab("As the training function reads them")
    drawn = schema["definitions"]["Data"]["properties"]
    assert set(drawn) == set(DataSpec.model_fields), "what is new in the study file is on the form"
    assert "required" not in schema["definitions"]["Data"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"folder": "/etc"}, "data: /etc is not allowed here"),
        ({"folder": "../other"}, "other is not allowed here"),
        ({"folder": "linked"}, "linked is not allowed here"),
        ({"partitions": "/etc/manifest.json"}, "data: /etc/manifest.json is not allowed here"),
        ({"partitions": "[a]", "validation": "../manifest.json"}, "manifest.json is not allowed here"),
        ({"load": "os:listdir"}, "data.load = 'os:listdir' is not allowed here"),
    ],
)
def test_a_form_names_no_data_outside_the_folder_of_data(
    permissions: Permissions, tmp_path: Path, data: dict[str, str], says: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "linked").symlink_to("/etc")
    allowed = dataclasses.replace(permissions, data_folder=tmp_path / "data")
    made(allowed, data={"partitions": "part-*", "load": "models.net:load"})
    with pytest.raises(NotAllowedError, match=says):
        made(allowed, data={"partitions": "[a, b]"} | data)
    with pytest.raises(NotAllowedError, match="none is set"):
        made(permissions, data={"partitions": "part-*"})


def test_partitions_of_a_study_file_may_lie_beside_it(permissions: Permissions) -> None:
    assert permissions.folder is not None
    path = permissions.folder / "deep" / "a.yaml"
    path.write_text(path.read_text() + "\ndata: {partitions: part-*}\n")
    data = permissions.load("deep/a.yaml").data
    assert data is not None and data.folder == str(path.resolve().parent)
    path.write_text(path.read_text().replace("part-*", "part-*, folder: /srv"))
    with pytest.raises(NotAllowedError, match="/srv is not allowed here"):
        permissions.load("deep/a.yaml")


@pytest.mark.parametrize(
    ("changes", "setting", "value"),
    [
        ({"cluster": {"kind": "slurm", "prologue": ["curl example.org | sh"]}}, "HPO_ALLOWED_CLUSTERS", "slurm"),
        ({"cluster": {"kind": "kubernetes", "image": "x"}}, "HPO_ALLOWED_CLUSTERS", "kubernetes"),
        ({"checkpoints": {"folder": "file:///etc"}}, "HPO_ALLOWED_CHECKPOINTS", "file:///etc"),
    ],
)
def test_clusters_that_run_shell_lines_and_places_elsewhere_must_be_named(
    permissions: Permissions, changes: dict[str, Any], setting: str, value: str
) -> None:
    spec = StudySpec.from_plain(permissions.load("deep/a.yaml").plain() | changes)
    environment = {"HPO_ALLOWED_OBJECTIVES": "models", "HPO_IMPORT_FOLDERS": str(permissions.import_folders[0])}
    with pytest.raises(NotAllowedError, match=setting):
        Permissions.of_environment(environment).check(spec)
    Permissions.of_environment(environment | {setting: value}).check(spec)


def test_a_form_becomes_the_study_it_says(permissions: Permissions) -> None:
    spec = made(permissions)
    assert (spec.study, spec.seed, spec.cluster.workers) == ("named", 4, 3)  # type: ignore[union-attr]
    assert spec.space["kind"].choices == ["sgd", 16, True, "no", 0.001, "8"]  # type: ignore[union-attr]
    assert spec.space["rate"].type == "float" and spec.search.method == "asha"
    assert spec.pythonpath == [str(permissions.import_folders[0])]


def test_a_study_file_keeps_what_is_not_changed(permissions: Permissions) -> None:
    spec = with_changes(permissions.load("deep/a.yaml"), "other", permissions, seed=None, cluster=None)
    assert (spec.study, spec.seed, spec.search.method, spec.cluster.kind) == ("other", 0, "random", "local")


def test_conditions_whole_numbers_and_grids(permissions: Permissions) -> None:
    numbers = [
        {"name": "width", "low": 8, "high": 32, "whole": True, "step": 8},
        {"name": "momentum", "low": 0, "high": 0.9, "grid_points": 4, "only_if": "kind = sgd, 16", "fixed": True},
    ]
    spec = made(permissions, numbers=numbers, method={"method": "grid"})
    assert spec.space["width"].step == 8 and spec.space["width"].type == "int"  # type: ignore[union-attr]
    assert spec.space["momentum"].when == {"kind": ["sgd", 16]} and spec.space["momentum"].static
    assert spec.search.points == {"momentum": 4}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"numbers": [], "choices": []}, "no hyperparameter is given"),
        ({"choices": [{"name": "rate", "values": ["a"]}]}, "two rows for rate"),
        ({"numbers": [{"name": "w", "low": 1.5, "high": 4, "whole": True}]}, "low = 1.5 is no whole number"),
        ({"numbers": [{"name": "w", "low": 1, "high": 4, "only_if": "kind"}]}, "write PARAMETER = VALUE"),
        ({"numbers": [{"name": "w", "low": 1, "high": 4, "grid_points": 3}]}, "method Grid alone"),
    ],
)
def test_rows_that_make_no_study_say_why(permissions: Permissions, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        made(permissions, **changes)


def test_what_a_form_sends_means_what_a_study_file_says() -> None:
    """A form sends defaults and nulls; given in a file they would count as chosen."""
    read = TypeAdapter(Method).validate_python
    sent = {"method": "asha", "configs": 30, "max_resource": 27, "min_resource": None, "reduction_factor": 4,
            "variant": "promotion", "brackets": None}  # fmt: skip
    assert read(sent) == read({"method": "asha", "configs": 30, "max_resource": 27})
    assert read({"hyperband": "hyperband", "max_resource": 9}) == read({"method": "hyperband", "max_resource": 9})
    assert read({"grid": "grid", "max_resource": 9}).method == "grid"
    with pytest.raises(ValidationError, match="method is required"):
        read({"max_resource": 3})


def test_schema_has_a_tab_for_each_method_and_asks_for_no_mapping() -> None:
    schema = parameter_schema(tune).model_dump()
    fields = schema["properties"]
    tabs = [schema["definitions"][tab["$ref"].rsplit("/", 1)[1]] for tab in fields["method"]["anyOf"]]
    assert [tab["title"] for tab in tabs] == [
        "ASHA", "Successive halving", "Hyperband", "PASHA", "Population", "Random", "Grid",
    ]  # fmt: skip
    inner = [item for tab in tabs for item in tab["properties"].items()]
    assert not [name for name, field in inner if field.get("type") == "object"]
    assert all(field.get("description") for name, field in inner)
    assert all(field.get("description") for field in fields.values())
    for tab in tabs:  # a tab as it opens is a search
        method = next(iter(tab["properties"]))
        opened = as_it_opens(tab)
        assert TypeAdapter(Method).validate_python(opened).method == method
        budget = {"configs": 30, "max_resource": 27}
        assert all(opened[name] == value for name, value in budget.items() if name in opened)


def test_every_tab_as_it_opens_is_a_search_of_a_like_size(permissions: Permissions) -> None:
    """The tab Population ran 600 trials, and the others 30."""
    schema = parameter_schema(tune).model_dump()
    tabs = [schema["definitions"][tab["$ref"].rsplit("/", 1)[1]] for tab in schema["properties"]["method"]["anyOf"]]
    sizes, tops = {}, {}
    for tab in tabs:
        row = {"name": "x", "low": 0.0, "high": 1.0} | ({"grid_points": 30} if tab["title"] == "Grid" else {})
        world = World(1, workers=2)
        study = fresh(
            made(permissions, method=as_it_opens(tab), numbers=[row], choices=[], metric={"name": "loss"}), None, world
        )
        assert not world.play(study, steps=5_000) and study.finished
        sizes[tab["title"]] = len(study.state.trials)
        tops[tab["title"]] = study.spec.search.outline().max_resource
    assert set(tops.values()) == {27}, tops
    assert len(sizes) == 7 and max(sizes.values()) <= 2 * min(sizes.values()), sizes


@pytest.mark.parametrize(
    ("flow", "sent"),
    [
        (tune, {"objective": "a:b"}),
        (tune_file, {"file": "a.yaml"}),
        (resume, {"study": "a"}),
        (rerun, {"study": "a"}),
        (retrain, {"model": "m", "data": "d"}),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_what_a_run_leaves_out_is_accepted(flow: Any, sent: dict[str, Any]) -> None:
    """Prefect validates the defaults of a flow as if they had been sent."""
    defaults = {name: found.default for name, found in inspect.signature(flow.fn).parameters.items()}
    found = flow.validate_parameters(defaults | sent)
    assert {name: value for name, value in found.items() if value is not None} == sent
    form = read_form(next(iter(get_type_hints(flow.fn).values())), found)
    assert form.model_dump(mode="json", exclude_unset=True) == sent


def shown_at_once(schema: dict[str, Any], definition: dict[str, Any]) -> list[str]:
    """Labels of all inputs of a form as it opens, lists without rows."""
    found = []
    for name, field in definition["properties"].items():
        one = resolved(schema, field["anyOf"][0] if "anyOf" in field else field)
        inside = shown_at_once(schema, one) if "properties" in one else [""]
        found += [f"{name}.{inner}".strip(".") for inner in inside]
    return found


def resolved(schema: dict[str, Any], field: dict[str, Any]) -> dict[str, Any]:
    at = field.get("$ref")
    return field if at is None else schema["definitions"][at.rsplit("/", 1)[1]]


def everywhere(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping within a schema."""
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from everywhere(one)


FLOWS = [tune, tune_file, resume, rerun, retrain, compare]


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_no_form_writes_type_none_or_marks_of_markdown(flow: Any) -> None:
    """Of a field of type null both UIs write 'Property is type "None"'; the newer one draws no Markdown."""
    schema = parameter_schema(flow).model_dump()
    for one in everywhere(schema):
        assert one.get("type") != "null", one
        assert "`" not in str(one.get("description", "")), one["description"]


def test_the_form_shows_what_everybody_sets_and_folds_the_rest() -> None:
    schema = parameter_schema(tune).model_dump()
    fields = sorted(schema["properties"], key=lambda name: schema["properties"][name]["position"])
    assert (fields[0], fields[-1]) == ("objective", "advanced")
    assert shown_at_once(schema, schema) == [
        "objective", "name", "metric.name", "metric.mode", "numbers", "choices", "method.asha", "method.configs",
        "method.max_resource", "sampler", "cluster.workers",
    ]  # fmt: skip
    row = schema["definitions"]["Number"]
    assert shown_at_once(schema, row) == ["name", "low", "high", "whole", "log"]


def test_what_a_study_needs_is_not_called_optional() -> None:
    schema = parameter_schema(tune).model_dump()
    assert schema["required"] == ["objective", "metric", "numbers", "choices"]
    begins = {name: schema["properties"][name].get("default") for name in schema["required"]}
    wanted = {"objective": None, "metric": {"name": "val_loss", "mode": "min"}, "numbers": [], "choices": []}
    assert begins == wanted
    for name in ("numbers", "choices"):
        assert schema["properties"][name]["minItems"] == 0, "or the newer UI takes an empty list for a missing one"
    assert schema["definitions"]["Metric"]["required"] == ["name"]
    assert "one row at least" in schema["properties"]["numbers"]["description"]


def test_every_setting_is_on_the_form_once() -> None:
    """Shown or in a fold: all fields of the form, of its rows and of each method, as before some were folded."""
    schema = parameter_schema(tune).model_dump()
    drawn = list(schema["properties"]) + list(schema["definitions"]["Advanced"]["properties"])
    assert sorted({*FilledIn.model_fields, "advanced"}) == sorted(drawn)
    for title, model in {"Number": Number, "Choice": Choice}.items():
        fields = schema["definitions"][title]["properties"]
        fold = fields.pop("advanced")["anyOf"][1]["properties"]
        assert sorted([*fields, *fold]) == sorted(model.model_fields)
    for method in schema["properties"]["method"]["anyOf"]:
        name = resolved(schema, method)["title"]
        settings = next(one for one in BY_NAME.values() if one.title == name)
        fields = resolved(schema, method)["properties"]
        fold = fields.pop("advanced", {"anyOf": [0, {"properties": {}}]})["anyOf"][1]["properties"]
        expected = set(settings.model_fields) - settings.only_in_files - {"method"}
        assert {*fields, *fold} - {next(iter(fields))} == expected, name


FLAT: dict[str, Any] = {
    "objective": "models.net:fit",
    "numbers": [{"name": "rate", "low": 1e-4, "high": 1, "step": 1e-4, "only_if": "kind = sgd"}],
    "choices": [{"name": "kind", "values": ["sgd", "16"], "ordered": False, "fixed": True}],
    "method": {"method": "asha", "configs": 9, "max_resource": 9, "reduction_factor": 3, "min_resource": 1},
    "cluster": {"workers": 4},
    "seed": 7,
    "limits": {"seconds": 500},
    "packing": {"policy": "worst_fit", "job_memory": "2GB"},
    "further": {"repeats": 2},
    "experiment": "ours",
    "optuna": "on",
    "training": None,
}
"""Parameters of a run as they were saved before anything was folded."""


def of_a_run(permissions: Permissions, parameters: dict[str, Any]) -> StudySpec:
    """The study of a run with these parameters, by the server's check and the flow's own."""
    validate(parameters, parameter_schema(tune).model_dump(), raise_on_error=True)
    found = tune.validate_parameters(parameters)
    form = read_form(FilledIn, found)
    return with_changes(
        study_of(form, permissions, form.cluster), "named", permissions, seed=None, cluster=form.cluster
    )


def test_parameters_that_were_saved_before_anything_was_folded_make_the_same_study(permissions: Permissions) -> None:
    said = of_a_run(permissions, FLAT | {"metric": {"name": "loss", "mode": "max"}})
    assert (said.seed, said.stop.seconds, said.repeats, said.tracking.experiment) == (7, 500, 2, "ours")
    assert said.search.reduction_factor == 3 and said.packing is not None  # type: ignore[union-attr]
    drawn = as_drawn(FLAT | {"metric": {"name": "loss", "mode": "max"}})
    assert drawn.keys() <= {*FilledIn.basic, FOLD} and drawn["advanced"]["limits"] == {"seconds": 500}
    assert drawn["numbers"][0]["advanced"] == {"step": 1e-4, "only_if": "kind = sgd"}
    assert drawn["method"]["advanced"] == {"reduction_factor": 3, "min_resource": 1}
    assert drawn["cluster"] == {"workers": 4}
    assert "training" not in drawn["advanced"], "null, which the form does not take"
    assert of_a_run(permissions, drawn).plain() == said.plain()
    assert as_drawn(drawn) == drawn


def test_a_deployment_without_what_the_form_needs_is_registered_with_it(permissions: Permissions) -> None:
    entries = [
        {"name": "own", "entrypoint": "hpo_flows.deployed.flows:tune", "parameters": FLAT},
        {"name": "x", "entrypoint": "a:b"},
    ]
    own, other = begun_as_drawn(entries)
    assert other == entries[1] and own["parameters"]["metric"] == {"name": "val_loss", "mode": "min"}
    bare = begun_as_drawn([{"entrypoint": "hpo_flows.deployed.flows:tune"}])[0]["parameters"]
    assert bare == {"metric": {"name": "val_loss", "mode": "min"}, "numbers": [], "choices": []}
    assert of_a_run(permissions, own["parameters"]).metric.name == "val_loss"


def test_a_setting_stands_inside_or_outside_of_the_fold(permissions: Permissions) -> None:
    flat = {name: value for name, value in FLAT.items() if name != "seed"} | {"metric": {"name": "loss"}}
    assert (
        of_a_run(permissions, flat | {"seed": 3}).seed == of_a_run(permissions, flat | {"advanced": {"seed": 3}}).seed
    )
    with pytest.raises(SpecError, match=r"form: .*seed stands in advanced and beside it; give it once"):
        of_a_run(permissions, flat | {"seed": 7, "advanced": {"seed": 3}})


def as_it_opens(tab: dict[str, Any]) -> dict[str, Any]:
    """What a tab holds before anything is typed: the defaults of its fields."""
    assert "default" not in tab, "the newer UI would mix it with those of the tab before"
    return {name: field["default"] for name, field in tab["properties"].items() if "default" in field}


@pytest.mark.parametrize("flow", [tune, tune_file, resume, rerun, retrain], ids=lambda flow: flow.name)
def test_prefect_s_older_ui_keeps_the_tab_that_was_opened_and_nothing_has_to_leave_none(flow: Any) -> None:
    """It shows the tab that has most keys of the value, the first of several; what opens is the whole field's default,
    or else the tab's own."""
    schema = parameter_schema(flow).model_dump()
    for name, field in schema["properties"].items():
        assert field.get("default", "") is not None, f"{name}: None would be sent, or be a tab"
        if "anyOf" not in field:
            continue
        assert "default" not in field, f"{name}: another tab would take it when it opens"
        tabs = [schema["definitions"][tab["$ref"].rsplit("/", 1)[1]] for tab in field["anyOf"] if "$ref" in tab]
        for index, tab in enumerate(tabs):
            common = [len(as_it_opens(tab).keys() & other["properties"].keys()) for other in tabs]
            assert common.index(max(common)) == index, (
                f"{name}: {tab['title']} becomes {tabs[common.index(max(common))]}"
            )
            for inner, of_tab in tab["properties"].items():
                kinds = [one.get("type") for one in of_tab.get("anyOf", [])]
                assert "null" not in kinds and of_tab.get("default", "") is not None, f"{name}.{inner}"


def test_data_lies_in_its_folder_or_is_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "may.npz").touch()
    (tmp_path / "secret").touch()
    (folder / "link").symlink_to(tmp_path / "secret")
    permissions = Permissions.of_environment({"HPO_DATA_FOLDER": str(folder)})
    assert permissions.data_of(str(folder / "may.npz")) == permissions.data_of("may.npz") == str(folder / "may.npz")
    assert permissions.data_of("period-3") == "period-3"
    for bad in (str(tmp_path / "secret"), f"{folder}/../secret", str(folder / "link"), "..", "/etc/passwd"):
        with pytest.raises(NotAllowedError, match="no file of the deployment's folder of data"):
            permissions.data_of(bad)
    with pytest.raises(NotAllowedError, match="no folder is set"):
        Permissions().data_of("/etc/passwd")


@pytest.mark.parametrize("kind", ["form", "file", "ordinal", "recorded", "warm_start", "constant", "list", "group"])
def test_a_parameter_called_data_names_what_lies_in_the_folder_of_data(permissions: Permissions, kind: str) -> None:
    """Training functions open it: through every door that a study comes by."""
    assert permissions.folder is not None
    data = permissions.folder.parent / "data"
    data.mkdir()
    (data / "may.npz").touch()
    open_to = dataclasses.replace(permissions, data_folder=data)

    def checked(permissions: Permissions, value: str) -> None:
        named = {"type": "ordinal" if kind == "ordinal" else "categorical", "choices": [value, "period-3"]}
        given = permissions.load("deep/a.yaml").plain()
        x = given["space"]["x"]
        if kind == "form":
            made(permissions, choices=[{"name": "data", "values": ["period-3", value]}])
            return
        if kind in ("file", "ordinal"):
            given["space"] = {"x": x, "data": named}
        elif kind == "recorded":
            params = [{"x": 0.5, "data": "period-3"}, {"x": 0.5, "data": value}]
            given["search"] = {"method": "recorded", "source": "a", "study_record": {"grants": [], "params": params}}
        elif kind == "group":
            given["space"] = {"x": x, "data": {"path": named}}
        elif kind == "constant":
            given["constants"] = {"data": [value, "period-3"]}
        elif kind == "list":
            given["space"] = {"x": x, "data": named | {"choices": ["period-3", ["period-3", value]]}}
        else:
            given["warm_start"] = {"studies": ["a"], "proposals": [{"x": 0.5, "data": value}]}
        permissions.check(StudySpec.from_plain(given))

    for good in ("period-1", "may.npz", str(data / "may.npz"), str(data / "removed-since.npz")):
        checked(open_to, good)
    checked(permissions, "period-1")
    for bad in ("/etc/passwd", f"{data}/../../secret.yaml", "../secret.yaml", str(data.parent)):
        with pytest.raises(NotAllowedError, match="no file of the deployment's folder of data"):
            checked(open_to, bad)
    with pytest.raises(NotAllowedError, match="no folder is set"):
        checked(permissions, str(data / "may.npz"))


def test_a_form_says_where_a_study_runs() -> None:
    permissions = Permissions(("models:fit",), clusters=("tls://a:1",))
    spec = make_spec(objective="models:fit")
    local = LocalWorkers(workers=3)
    made = with_changes(spec, "one", permissions, seed=None, cluster=local)
    assert made.cluster == LocalClusterSpec(workers=3)
    at = DaskScheduler(address="tls://a:1")
    made = with_changes(spec, "two", permissions, seed=None, cluster=at)
    assert made.cluster == AddressClusterSpec(address="tls://a:1")


MOST = "{weight: 2, priority: 1, slots: 8}"


def bounded(permissions: Permissions, most: str = MOST) -> Permissions:
    read = Permissions.of_environment({"HPO_ALLOWED_SHARE": most})
    return dataclasses.replace(permissions, share=read.share, clusters=("tls://a:1",))


@pytest.mark.parametrize(
    ("share", "at_address", "most", "says"),
    [
        ({"weight": 2.5}, True, MOST, "share.weight = 2.5 is more than 2, which is not allowed here"),
        ({"priority": 2}, True, MOST, "share.priority = 2 is more than 1"),
        ({"pool": "cpu", "weight": 3}, False, MOST, "share.weight = 3 is more than 2"),
        ({"preempt": 3600}, True, MOST, "share.preempt = 3600 ends attempts of other studies"),
        ({"preempt": 60}, True, "{preempt: 300}", "share.preempt = 60 is less than 300"),
        (None, True, MOST, "share is absent, so the study would take every slot"),
        ({"pool": "mine"}, True, MOST, "share.pool = 'mine' leaves nothing to the other studies"),
        ({"pool": "mine"}, True, "{pool: gpu}", "the pool is 'gpu'"),
        ({"pool": "cpu", "slots": 1}, False, MOST, "share.slots = 1 makes the pool smaller"),
        ({"pool": "cpu", "slots": 8}, False, "true", "share.slots = 8 makes the pool smaller"),
        ({"weight": 2}, True, "true", "share.weight = 2 is more than 1"),
    ],
)
def test_a_deployment_claims_no_more_of_a_pool_than_its_operator_allows(
    permissions: Permissions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    share: dict[str, Any] | None,
    at_address: bool,
    most: str,
    says: str,
) -> None:
    """By form, study file and record alike; a schedule and the API hand the form's parameters in."""
    limited = bounded(permissions, most)
    cluster: dict[str, Any] = {"kind": "address", "address": "tls://a:1"} if at_address else {"kind": "local"}
    assert limited.folder is not None
    file = limited.folder / "shared.yaml"
    file.write_text((STUDY % tmp_path) + f"\nshare: {json.dumps(share)}\ncluster: {json.dumps(cluster)}\n")
    with pytest.raises(NotAllowedError, match=re.escape(says)):
        limited.load("shared.yaml")
    chosen = DaskScheduler(address="tls://a:1") if at_address else LocalWorkers(workers=2)
    with pytest.raises(NotAllowedError, match=re.escape(says)):
        made(limited, chosen, **({} if share is None else {"further": {"share": json.dumps(share)}}))
    monkeypatch.setenv("HPO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HPO_ALLOWED_OBJECTIVES", "models")
    monkeypatch.setenv("HPO_IMPORT_FOLDERS", str(tmp_path))
    monkeypatch.setenv("HPO_ALLOWED_CLUSTERS", "tls://a:1")
    monkeypatch.setenv("HPO_ALLOWED_SHARE", most)
    journal = Home().open_journal()
    Study.create(load_spec(file), journal)
    journal.close()
    with pytest.raises(NotAllowedError, match=re.escape(says)):
        recorded_study("inner")
    assert permissions.share is None
    dataclasses.replace(permissions, clusters=("tls://a:1",)).load("shared.yaml")  # without a bound all is allowed


@pytest.mark.parametrize(
    ("share", "at_address"),
    [
        ({"weight": 2, "priority": 1}, True),
        ({"weight": 0.5, "priority": -3}, True),
        ({"pool": "cpu", "slots": 9}, False),
        (None, False),
    ],
)
def test_a_claim_within_the_bound_is_taken(
    permissions: Permissions, share: dict[str, Any] | None, at_address: bool
) -> None:
    chosen = DaskScheduler(address="tls://a:1") if at_address else LocalWorkers(workers=2)
    spec = made(bounded(permissions), chosen, **({} if share is None else {"further": {"share": json.dumps(share)}}))
    assert spec.share == (None if share is None else ShareSpec(**share))


@pytest.mark.parametrize("text", ["{weight: heavy}", "{wieght: 2}", "5", "{", "false", "[]"])
def test_a_bound_that_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    """Else a misspelled one would allow everything."""
    with pytest.raises(SpecError, match="HPO_ALLOWED_SHARE = .* write it as share of a study file, such as"):
        Permissions.of_environment({"HPO_ALLOWED_SHARE": text})


def test_what_a_form_does_not_take_is_said_without_passwords() -> None:
    with pytest.raises(SpecError, match="configs") as raised:
        resume.fn(study="a", configs="https://me:pw-of-mine@host/x")
    assert "pw-of-mine" not in str(raised.value)
