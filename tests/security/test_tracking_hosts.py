"""A study may name any MLflow: it gets no credentials of ours, and does not say where files are written here."""

from __future__ import annotations

import base64
import importlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from hpo_core.home import Home
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.tracking.credential_scope import credentials_for, is_own, origin
from hpo_core.tracking.follower import REQUEST, FollowRequest
from hpo_core.tracking.mlflow_client import RunStore, open_client
from hpo_flows.deployed.permissions import NotAllowedError, Permissions
from tests.conftest import make_spec
from tests.flows.conftest import LIMIT, Runner
from tests.security.listening import listening

compare = importlib.import_module("hpo_flows.compare")
PASSWORD = "mlfl0w-pl4nted"
TOKEN = "t0ken-pl4nted"
CREDENTIALS = {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": PASSWORD}
BASIC = base64.b64encode(f"me:{PASSWORD}".encode()).decode()


def finished(home: Path, uri: str | None) -> None:
    """A recorded study that names an MLflow."""
    journal = Home(home).open_journal()
    spec = make_spec(study="toy", tracking={} if uri is None else {"mlflow": uri})
    study = Study.create(spec, journal)
    while (job := study.ask()) is not None:
        study.tell(job, {spec.metric.name: 0.5})
    journal.close()


@pytest.mark.parametrize(
    ("ours", "secret"),
    [
        pytest.param(True, CREDENTIALS, id="another is ours-password"),
        pytest.param(True, {"MLFLOW_TRACKING_TOKEN": TOKEN}, id="another is ours-token", marks=pytest.mark.slow),
        pytest.param(False, CREDENTIALS, id="none is ours-password", marks=pytest.mark.slow),
        pytest.param(False, {"MLFLOW_TRACKING_TOKEN": TOKEN}, id="none is ours-token", marks=pytest.mark.slow),
    ],
)
def test_hpo_project_sends_a_named_server_no_credentials(
    tmp_path: Path, hpo: Runner, secret: dict[str, str], ours: bool
) -> None:
    hpo.environment |= secret
    with listening() as named, listening() as own:
        if ours:
            hpo.environment["MLFLOW_TRACKING_URI"] = own.url
        finished(hpo.home, named.url)
        hpo("project", "toy")
        assert named.heard and not own.heard
        said = named.said()
    assert "Authorization" not in said and PASSWORD not in said and BASIC not in said and TOKEN not in said


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False], ids=["named by the study, too", "of the environment"])
def test_the_own_server_gets_credentials(hpo: Runner, named: bool) -> None:
    with listening() as own:
        hpo.environment |= CREDENTIALS | {"MLFLOW_TRACKING_URI": own.url + "/"}
        finished(hpo.home, own.url if named else None)
        hpo("project", "toy")
        assert own.heard and all(BASIC in headers.get("Authorization", "") for _, headers in own.heard)


@pytest.mark.slow
def test_the_credentials_file_is_used_for_the_own_server_only(hpo: Runner) -> None:
    file = hpo.folder / ".mlflow" / "credentials"
    file.parent.mkdir()
    file.write_text(f"[mlflow]\nmlflow_tracking_username = me\nmlflow_tracking_password = {PASSWORD}\n")
    with listening() as named:
        finished(hpo.home, named.url)
        hpo("project", "toy")
        assert named.heard and "Authorization" not in named.said()
    with listening() as own:  # the file is read at all
        hpo.environment["MLFLOW_TRACKING_URI"] = own.url
        hpo.home = hpo.folder / "other"
        hpo.environment["HPO_HOME"] = str(hpo.home)
        finished(hpo.home, None)
        hpo("project", "toy")
        assert BASIC in own.said()


def test_a_redirect_gets_no_credentials(hpo: Runner) -> None:
    with listening() as elsewhere, listening(redirect=elsewhere.url.replace("127.0.0.1", "localhost")) as own:
        hpo.environment |= CREDENTIALS | {"MLFLOW_TRACKING_URI": own.url}
        finished(hpo.home, None)
        hpo("project", "toy")
        assert BASIC in own.said()
        assert elsewhere.heard and "Authorization" not in elsewhere.said()


def test_a_server_cannot_change_its_mind_about_where_files_go(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    with listening() as named:
        store = RunStore(open_client(named.url), named.url, "hpo", None)
        run = store.create("toy", 1.0, {})
        assert store.takes_files(run)
        named.runs[run.run_id]["info"]["artifact_uri"] = target.as_uri()
        store.write_text(run, "{}", "promotions.json")
        assert named.heard[-1][0] == "/api/2.0/mlflow-artifacts/artifacts/1/promotions.json"
    assert not target.exists()


@pytest.mark.slow
def test_a_recorded_study_cannot_send_credentials_to_its_server(hpo: Runner) -> None:
    """The whole way: ``hpo tune`` of a file from elsewhere, and ``hpo resume`` of what it left."""
    target = hpo.folder / "precious"
    with listening(artifacts=target.as_uri()) as named:
        hpo.environment |= CREDENTIALS
        file = hpo.study(tracking={"mlflow": named.url}, search={"method": "random", "configs": 2, "max_resource": 1})
        hpo("tune", file, "--name", "toy")
        assert named.heard and "Authorization" not in named.said()
        count = len(named.heard)
        hpo("extend", "toy", "--configs", "1")
        assert len(named.heard) > count and "Authorization" not in named.said()
    assert not target.exists(), "a server that the study named had files written to a place of its choice"
    log = (hpo.home / "studies" / "toy" / "mlflow.log").read_text()
    assert "MLFLOW_TRACKING_PASSWORD" in log and PASSWORD not in log


def test_the_follower_sends_no_credentials_to_another_server(tmp_path: Path) -> None:
    finished(tmp_path, None)
    with listening() as named:
        place, journal = str(tmp_path / "studies" / "toy"), Home(tmp_path).journal_url
        request = FollowRequest(journal=journal, study="toy", folder=place, uri=named.url)
        command = [sys.executable, "-m", "hpo_core.tracking.follower", place]
        environment = os.environ | CREDENTIALS | {REQUEST: msgspec.json.encode(request).decode()}
        log = tmp_path / "log"
        with log.open("w") as said:
            follower = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=said, env=environment)
        try:
            until = time.monotonic() + LIMIT
            while len(named.heard) < 3:
                assert time.monotonic() < until and follower.poll() is None, log.read_text()
                time.sleep(0.1)
            assert follower.stdin is not None
            follower.stdin.close()
            follower.wait(LIMIT)
        finally:
            follower.kill()
        assert "Authorization" not in named.said()


@pytest.mark.parametrize(
    "uri",
    [
        "http://10.0.0.9:5000", "https://mlflow:5000", "http://mlflow:5001", "http://mlflow", "http://mlflow.evil:5000",
        "http://evil:5000\\.mlflow:5000", "databricks",
        "file:///etc/cron.d", "/etc", "./runs", "sqlite:////etc/passwd", "sqlite:////srv/hpo/other.db", "uc:x",
        "postgresql://evil/db", "s3://bucket/x", "https://mlflow.lab:443.evil/",
    ],
)  # fmt: skip
def test_a_deployment_refuses_other_mlflow_servers(uri: str) -> None:
    environment = {"MLFLOW_TRACKING_URI": "http://me:secret@mlflow:5000", "HPO_HOME": "/srv/hpo"}
    permissions = Permissions.of_environment(
        environment
        | {
            "HPO_ALLOWED_OBJECTIVES": "models.net:fit",
            "HPO_ALLOWED_TRACKING": "https://mlflow.lab, sqlite:////srv/a.db",
        }
    )
    with pytest.raises(NotAllowedError, match="HPO_ALLOWED_TRACKING") as caught:
        permissions.check(spec_with(uri))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "uri", [None, "off", "http://mlflow:5000", "http://MLflow:5000/", "https://mlflow.lab:443/x", "sqlite:////srv/a.db"]
)
def test_a_deployment_allows_its_own_and_listed_servers(uri: str | None) -> None:
    environment = {"MLFLOW_TRACKING_URI": "http://me:secret@mlflow:5000", "HPO_HOME": "/srv/hpo"}
    Permissions.of_environment(
        environment
        | {
            "HPO_ALLOWED_OBJECTIVES": "models.net:fit",
            "HPO_ALLOWED_TRACKING": "https://mlflow.lab, sqlite:////srv/a.db",
        }
    ).check(spec_with(uri))


def test_a_deployment_without_a_server_allows_only_the_store_in_its_home() -> None:
    permissions = Permissions.of_environment({"HPO_HOME": "/srv/hpo", "HPO_ALLOWED_OBJECTIVES": "models.net:fit"})
    permissions.check(spec_with(None))
    permissions.check(spec_with("sqlite:////srv/hpo/mlflow.db"))
    with pytest.raises(NotAllowedError):
        permissions.check(spec_with("http://127.0.0.1:5000"))


def spec_with(uri: str | None) -> StudySpec:
    plain = make_spec(study="toy").plain() | {"objective": "models.net:fit"}
    return StudySpec.from_plain(plain | {"tracking": {} if uri is None else {"mlflow": uri}})


def test_hosts_are_compared_by_name_and_port() -> None:
    ours = {"MLFLOW_TRACKING_URI": "http://me:pw@127.0.0.1:5000"}
    assert is_own("http://127.0.0.1:5000/", ours)
    for uri in (
        "http://127.0.0.1:50001",
        "http://127.0.0.1:5000\\@evil",
        "https://127.0.0.1:5000",
        "http://127.1:5000",
    ):
        assert not is_own(uri, ours)
    assert origin("http://a b") is None and origin("http://[::1]:5000/x") == ("http", "[::1]", 5000)


def test_the_environment_is_restored_afterwards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from mlflow.utils import credentials

    before = credentials._read_mlflow_creds_from_file
    (tmp_path / ".mlflow").mkdir()
    (tmp_path / ".mlflow" / "credentials").write_text("[mlflow]\nmlflow_tracking_password = from-the-file\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert credentials.get_default_host_creds("http://ours:5000").password == "from-the-file"
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with credentials_for("http://evil:5000"), credentials_for("http://evil:6000"):
        assert not CREDENTIALS.keys() & os.environ.keys()
        assert credentials.get_default_host_creds("http://evil:5000").password is None
    assert {name: os.environ[name] for name in CREDENTIALS} == CREDENTIALS
    assert credentials._read_mlflow_creds_from_file is before


def test_studies_in_a_journal_are_checked_like_study_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`compare` in a deployment logs into the MLflow of a recorded study: that one must be allowed, too."""
    finished(tmp_path, "http://evil:5000")
    monkeypatch.setenv("HPO_HOME", str(tmp_path))
    journal = Home().open_journal()
    spec = Study.open("toy", journal, at=0).spec
    assert compare._tracked(Home(), journal, spec).tracking_uri == "http://evil:5000"
    monkeypatch.setattr(compare, "deployment", SimpleNamespace(id="a deployment"))
    with pytest.raises(NotAllowedError, match="HPO_ALLOWED_TRACKING"):
        compare._tracked(Home(), journal, spec)
    journal.close()
