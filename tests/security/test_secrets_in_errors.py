"""What training functions and libraries print and raise is kept, logged and shown: without the secrets in it."""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from hpo_core.journal.sql import SqlJournal, open_journal
from hpo_core.model.errors import HpoError, JournalError
from hpo_core.model.trial import Outcome, Report
from hpo_core.security.masking import (
    add_secrets_of,
    mask_logs,
    masked,
    masked_errors,
    masked_report,
    without_credentials,
)
from hpo_core.tracking.tracker_links import reason_of
from tests.flows.conftest import Runner

AWKWARD = "it's/awsPl4nted+\"k\\y"
ENVIRONMENT = {
    "AWS_SECRET_ACCESS_KEY": AWKWARD,
    "TEAM_DATABASE": "postgresql+psycopg://hpo:db/Pl4nted%40x@db.lab/hpo?sslpassword=argPl4nted",
    "MLFLOW_TRACKING_USERNAME": "me",
    "MLFLOW_TRACKING_PASSWORD": "mlflowPl4nted",
    "PREFECT_API_AUTH_STRING": "admin:prefectPl4nted",
    "WEBHOOK": "https://hooks.lab/x?token=hookPl4nted",
    "PRIVATE_KEY": "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEAlinePl4nted\nbPl4ntedlineoftwo==\n-----END KEY-----",
}
SECRETS = {
    AWKWARD, "db/Pl4nted%40x", "db/Pl4nted@x", "argPl4nted", "mlflowPl4nted", "prefectPl4nted", "hookPl4nted",
    "admin:prefectPl4nted", ENVIRONMENT["PRIVATE_KEY"],
}  # fmt: skip
CORES = ("awsPl4nted", "Pl4nted%40x", "Pl4nted@x", "argPl4nted", "mlflowPl4nted", "prefectPl4nted", "hookPl4nted",
         "linePl4nted", "bPl4nted")  # fmt: skip


@pytest.mark.parametrize("secret", sorted(SECRETS))
def test_a_secret_is_masked_as_it_is_and_as_urls_quote_it(secret: str) -> None:
    for form in (secret, quote(secret, safe=""), f"a{secret}b", f"Traceback:\n  File x\nE: {secret}\n"):
        said = masked(f"before {form} after", ENVIRONMENT)
        assert said.startswith("before ") and said.endswith(" after") and "***" in said
        assert not [core for core in CORES if core in said], (form, said)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot reach postgresql://me:unknown-pw@h/db", "cannot reach postgresql://h/db"),
        ("GET /x?access_token=abcdef&y=1", "GET /x?access_token=***&y=1"),
    ],
)
def test_credentials_in_urls_are_masked(text: str, shown: str) -> None:
    assert masked(text, {}) == shown


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'secret_dim'", "unexpected token: '}' at 3", "ValueError: width 0.3 is not what I like",
        "CUDA out of memory. Tried to allocate 20.00 MiB", "key=5, value=7", "http://127.0.0.1:5000/#/experiments/1",
        "File \"/home/me/project/train.py\", line 3, in train", "100000 tokens",
    ],
)  # fmt: skip
def test_ordinary_text_is_not_masked(text: str) -> None:
    environment = {
        "PWD": "/home/me/work", "TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "100000", "SSH_KEY_PATH": "/home/me",
        "MLFLOW_TRACKING_USERNAME": "train", "A_TOKEN": "in", "XAUTHORITY": "/tmp", "USER": "allocate",
    }  # fmt: skip
    assert masked(text, environment) == text


def test_reports_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "0.123456789")
    report = Report(
        trial=1, attempt=0, outcome=Outcome.ERROR, metrics={"loss": 0.123456789}, message="got 0.123456789",
        detail="line\n0.123456789", unrestored=("x: 0.123456789",),
    )  # fmt: skip
    safe = masked_report(report)
    assert (safe.message, safe.detail, safe.unrestored) == ("got ***", "line\n***", ("x: ***",))
    assert safe.metrics == report.metrics


def test_logs_and_their_tracebacks_are_masked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MY_PASSWORD", "logPl4nted")
    before = logging.getLogRecordFactory()
    handler = logging.FileHandler(tmp_path / "log")
    log = logging.getLogger("test.masking")
    log.addHandler(handler)
    try:
        mask_logs()
        mask_logs()
        log.warning("it was %s", "logPl4nted")
        try:
            try:
                raise ValueError("logPl4nted")
            except ValueError as cause:
                raise RuntimeError("another") from cause
        except RuntimeError:
            log.exception("failed: %d %%", 3)
    finally:
        log.removeHandler(handler)
        logging.setLogRecordFactory(before)
        handler.close()
    said = (tmp_path / "log").read_text()
    assert "logPl4nted" not in said and "it was ***" in said and "failed: 3 %" in said
    assert "ValueError: ***" in said and "RuntimeError: another" in said


def test_errors_of_libraries_are_raised_without_secrets() -> None:
    add_secrets_of("postgresql+psycopg://hpo:urlPl4nted@127.0.0.1:9/hpo")
    with pytest.raises(HpoError) as caught, masked_errors():
        sa.create_engine("nodatabase://hpo:urlPl4nted@127.0.0.1:9/hpo")
        raise sa.exc.OperationalError("SELECT 'urlPl4nted'", {}, Exception("no pg_hba.conf entry for urlPl4nted"))
    assert "urlPl4nted" not in str(caught.value)
    with pytest.raises(JournalError, match=r"^at \*\*\*$") as kind, masked_errors():
        raise JournalError("at urlPl4nted")
    assert kind.value.exit_code == 6
    with pytest.raises(ValueError, match="as it was"), masked_errors():
        raise ValueError("as it was")
    assert "urlPl4nted" not in reason_of(RuntimeError("x" * 295 + "urlPl4nted"))


LEAKY = """
import json, os, sys, time
from urllib.parse import quote

SECRETS = json.load(open(__file__ + ".json"))

def train(trial):
    for _ in trial.steps():
        print("printed", SECRETS["MLFLOW_TRACKING_PASSWORD"], flush=True)
        aws, database, user, password, auth, hook, key = SECRETS.values()
        kind = int(trial.params["kind"])
        if kind == 0:
            raise ValueError(f"plain {aws} {database} {password} {auth} {hook}")
        if kind == 1:
            raise RuntimeError(quote(aws, safe=""), [database, password], {"hook": hook})
        if kind == 2:
            try:
                raise ValueError(f"{aws} {database}")
            except ValueError as error:
                raise RuntimeError("see the cause") from error
        if kind == 3:
            print("y" * 4000, password, auth, file=sys.stderr, flush=True)
            os._exit(3)
        if kind == 4:
            raise OSError(5, "no such file", f"/tmp/{password}")
        trial.report(loss=0.5)
"""


def contents(*folders: Path) -> dict[Path, bytes]:
    """All files below; the server of all tests may remove some of its own meanwhile."""
    found = {}
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.read_bytes()
    return found


@pytest.mark.slow
def test_no_secret_of_the_settings_is_stored_or_printed(hpo: Runner) -> None:
    """A real study with Prefect and MLflow: what its function raises and prints is nowhere but in its own log."""
    (hpo.folder / "leaky.py").write_text(LEAKY)
    (hpo.folder / "leaky.py.json").write_text(json.dumps(ENVIRONMENT))
    own = hpo.environment["PREFECT_API_AUTH_STRING"]  # that of the server here, which must take us
    hpo.environment |= ENVIRONMENT | {"PREFECT_API_AUTH_STRING": own, "TEAM_AUTH_STRING": "admin:prefectPl4nted"}
    file = hpo.study(
        objective="leaky:train", pythonpath=[str(hpo.folder)], tracking={}, prefect="auto",
        space={"kind": {"type": "categorical", "choices": list("501234")}},
        search={"method": "grid", "max_resource": 1}, training={"retries": {"crashed": 0}, "fail_fast": None},
    )  # fmt: skip
    process = hpo.start("tune", file)
    said = "\n".join(process.communicate(timeout=600))
    assert process.returncode == 9, said
    for number in range(6):
        said += hpo("show", "toy", "--trial", str(number))
    said += hpo("export", "toy") + hpo("report", "toy") + hpo("status", "toy") + hpo("project", "toy")
    assert said.count("***") > 20 and "plain ***" in said and "see the cause" in said
    assert [core for core in CORES if core in said] == []

    written = contents(hpo.home, Path(hpo.environment["PREFECT_HOME"]))
    names = {path.name for path in written}
    assert {"journal.db", "mlflow.db", "mlflow.log", "report.html", "prefect.db"} <= names
    raw = {path for path in written if path.parent.name == "logs" and path.is_relative_to(hpo.home)}
    assert any(b"Pl4nted" in written[path] for path in raw), "the function's own output is not rewritten"
    found = {
        str(path): [core for core in CORES if core.encode() in content]
        for path, content in written.items() if path not in raw
    }  # fmt: skip
    assert {path: cores for path, cores in found.items() if cores} == {}
    everything = b"".join(written[path] for path in written if path.name.startswith(("mlflow.db", "prefect.db")))
    assert everything.count(b"plain ***") >= 2, "MLflow's tag, and Prefect's state or log"


PLANTED = "pl4nted-s3cret"


@pytest.mark.parametrize(
    "uri",
    [
        "http://mlflow:5000/@home", "sqlite:////tmp/a@b/mlflow.db", "off", "databricks",
        "postgresql://db/mlflow?sslmode=require&sslkey=/etc/client.key&keepalives=1",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_credential_is_none(uri: str) -> None:
    assert without_credentials(uri) == uri


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        (f"http://me:{PLANTED}@mlflow:5000/x", "http://mlflow:5000/x"),
        (f"postgresql://me:sl/sh{PLANTED}@db/mlflow", "postgresql://db/mlflow"),
        (f"postgresql://db/m?password={PLANTED}&sslmode=require", "postgresql://db/m?password=***&sslmode=require"),
    ],
)
def test_what_is_shown_of_a_url_holds_no_password(uri: str, shown: str) -> None:
    assert without_credentials(uri) == shown
    said = reason_of(RuntimeError(f"API request to {uri} failed, and {uri}: (pool: {uri})"))
    assert PLANTED not in said and said.count("://") == 3


def test_a_journal_shows_no_password_of_its_arguments(tmp_path: Path) -> None:
    journal = SqlJournal(f"sqlite:///{tmp_path / 'journal.db'}")
    journal._url = journal._url.set(query={"password": PLANTED, "timeout": "3"})
    assert str(journal).endswith("journal.db?password=***&timeout=3") and PLANTED in journal.url


@pytest.mark.parametrize(
    "url",
    [
        f"post gresql://hpo:{PLANTED}@127.0.0.1:9/hpo",
        f"postgresql+psycopg://hpo:{PLANTED}@127.0.0.1:9/hpo",
        f"nodatabase://hpo:{PLANTED}@127.0.0.1:9/hpo",
        f"postgresql+psycopg://127.0.0.1:9/hpo?user=hpo&password={PLANTED}",
    ],
    ids=["malformed", "unreachable", "unknown", "argument"],
)
def test_a_journal_that_cannot_be_opened_keeps_its_password(url: str) -> None:
    with pytest.raises(JournalError) as caught:
        open_journal(url)
    assert PLANTED not in str(caught.value) and "127.0.0.1" in str(caught.value)
