"""Opens an Optuna storage that a study is copied to: never a database that holds something else.

Optuna, MLflow and Prefect each keep the state of their tables in one of the same name (``alembic_version``), so two of
them in one database break each other.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

from hpo_core.model.errors import HpoError
from hpo_core.security.masking import without_credentials

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

_OPTUNAS = {"studies", "trials", "version_info"}
_SECONDS = 10
"""How long a database may take to answer; the follower tries again."""


def open_storage(url: str) -> RDBStorage:
    """The storage at a database URL; its tables are made where there are none.

    Raises:
        HpoError: the database holds tables of something else.
        Exception: whatever the database raises.
    """
    import optuna
    from sqlalchemy import create_engine, inspect

    for name in ("alembic", "optuna"):
        logging.getLogger(name).setLevel(logging.ERROR)
    arguments = _arguments(url)
    engine = create_engine(url, connect_args=arguments)
    try:
        tables = set(inspect(engine).get_table_names())
    finally:
        engine.dispose()
    if tables and not tables >= _OPTUNAS:
        raise HpoError(
            f"{without_credentials(url)} holds tables of something else ({', '.join(sorted(tables)[:3])}, ...), and "
            "Optuna shares a database with nothing. Name another one in tracking.optuna."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": arguments})


def close_storage(storage: Any) -> None:
    """Let go of its connections."""
    storage.remove_session()
    storage.engine.dispose()


def _arguments(url: str) -> dict[str, Any]:
    if url.startswith("sqlite"):
        return {"timeout": _SECONDS}
    return {"connect_timeout": _SECONDS}
