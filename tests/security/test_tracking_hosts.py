"""A study names no MLflow that nobody here trusts: none gets credentials, or says where files are written."""

from __future__ import annotations

import base64
import importlib
from pathlib import Path

import pytest

from hpo_core.home import Home
from hpo_core.model.errors import SpecError
from hpo_core.security.tracking_servers import is_own, origin
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_flows.deployed.permissions import NotAllowedError, Permissions
from hpo_flows.study_run.session import Session
from tests.conftest import make_spec
from tests.flows.conftest import Runner
from tests.security.listening import listening

compare = importlib.import_module("hpo_flows.compare")
PASSWORD = "mlfl0w-pl4nted"
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
    "ours", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["another is ours", "none is ours"]
)
def test_a_server_that_only_a_recorded_study_names_hears_nothing(hpo: Runner, ours: bool) -> None:
    hpo.environment |= CREDENTIALS
    with listening() as named, listening() as own:
        if ours:
            hpo.environment["MLFLOW_TRACKING_URI"] = own.url
        finished(hpo.home, named.url)
        said = hpo("project", "toy", code=2)
        assert not named.heard and not own.heard
    assert "HPO_ALLOWED_TRACKING" in said and PASSWORD not in said


@pytest.mark.parametrize(
    "uri", ["http://h:5000", "http://h:5000\\.evil", "databricks", "postgresql://h/db", "s3://bucket/x"]
)
def test_a_study_names_no_server_that_nobody_here_trusts(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    home = Home(tmp_path / "home")
    spec = make_spec(study="toy", objective="json:loads", tracking={"mlflow": uri})
    with pytest.raises(SpecError, match="If you trust it, set MLFLOW_TRACKING_URI to it"):
        Session(home, "toy", spec=spec)
    monkeypatch.setenv("HPO_ALLOWED_TRACKING", "http://h:5000, databricks, postgresql://h/db, s3://bucket/x")
    if "evil" not in uri:
        assert home.tracking_uri(spec) == uri
    monkeypatch.setenv("HPO_ALLOWED_TRACKING", "")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert home.tracking_uri(spec) == uri


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False], ids=["named by the study, too", "of the environment"])
def test_the_own_server_gets_credentials(hpo: Runner, named: bool) -> None:
    with listening() as own:
        hpo.environment |= CREDENTIALS | {"MLFLOW_TRACKING_URI": own.url + "/"}
        finished(hpo.home, own.url if named else None)
        hpo("project", "toy")
        assert own.heard and all(BASIC in headers.get("Authorization", "") for _, headers in own.heard)


@pytest.mark.slow
def test_a_redirect_gets_no_credentials(hpo: Runner) -> None:
    with listening() as elsewhere, listening(redirect=elsewhere.url.replace("127.0.0.1", "localhost")) as own:
        hpo.environment |= CREDENTIALS | {"MLFLOW_TRACKING_URI": own.url}
        finished(hpo.home, None)
        hpo("project", "toy")
        assert BASIC in own.said()
        assert elsewhere.heard and "Authorization" not in elsewhere.said()


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
