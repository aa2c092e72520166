from __future__ import annotations

from pathlib import Path

import pytest

from hpo_core.journal.sql import SqlJournal, open_journal
from hpo_core.model.errors import JournalError
from hpo_core.security.masking import without_credentials
from hpo_core.tracking.tracker_links import reason_of

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
