"""Where a study's copy for Optuna is looked at. Imports no Optuna."""

from __future__ import annotations

import shlex

from hpo_core.home import Home
from hpo_core.model.errors import SpecError
from hpo_core.security.masking import without_credentials
from hpo_core.spec import StudySpec


def dashboard_command(url: str) -> str:
    """The command that shows a storage in Optuna's dashboard; a password is left out."""
    return f"optuna-dashboard {shlex.quote(without_credentials(url))}"


def optuna_links(home: Home, spec: StudySpec) -> dict[str, str]:
    """For the report and the command line; empty where the study is not copied."""
    try:
        url = home.optuna_storage(spec)
    except SpecError:
        return {}
    return {} if url is None else {"Optuna": dashboard_command(url)}
