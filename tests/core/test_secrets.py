"""Passwords in settings do not get into what is kept or said."""

from __future__ import annotations

import pytest

from hpo_core.errors import JournalError, SpecError
from hpo_core.journal.sql import open_journal
from tests.conftest import make_spec

PLANTED = "pl4nted-s3cret"


@pytest.mark.parametrize("uri", [f"http://me:{PLANTED}@mlflow:5000", f"postgresql://{PLANTED}@db/mlflow"])
def test_a_study_takes_no_credentials(uri: str) -> None:
    with pytest.raises(SpecError, match="MLFLOW_TRACKING_PASSWORD") as caught:
        make_spec(tracking={"mlflow": uri})
    assert PLANTED not in str(caught.value)


@pytest.mark.parametrize("uri", ["http://mlflow:5000/@home", "sqlite:////tmp/a@b/mlflow.db", "off", "databricks"])
def test_an_at_sign_elsewhere_is_no_credential(uri: str) -> None:
    assert make_spec(tracking={"mlflow": uri}).tracking.mlflow == uri


@pytest.mark.parametrize(
    "url",
    [
        f"post gresql://hpo:{PLANTED}@127.0.0.1:9/hpo",
        f"postgresql+psycopg://hpo:{PLANTED}@127.0.0.1:9/hpo",
        f"nodatabase://hpo:{PLANTED}@127.0.0.1:9/hpo",
    ],
    ids=["malformed", "unreachable", "unknown"],
)
def test_a_journal_that_cannot_be_opened_keeps_its_password(url: str) -> None:
    with pytest.raises(JournalError) as caught:
        open_journal(url)
    assert PLANTED not in str(caught.value) and "127.0.0.1" in str(caught.value)
