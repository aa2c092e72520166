"""A session as a Prefect flow: find the Prefect API, or start the home's own server, and run the flow there."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from importlib.util import find_spec

from hpo_core.model.errors import HpoError
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.study import Study
from hpo_flows.prefect_api.connection import (
    PrefectServerError,
    check_api,
    client_environment,
    configured_api,
    is_in_flow_run,
    patient_prefect,
)
from hpo_flows.prefect_api.shared_server import SharedServer
from hpo_flows.study_run.session import Session, Summary


def drive_study(
    session: Session,
    action: str,
    *,
    prefect: bool,
    cure: Callable[[Study], str],
    ended: Callable[[Study, Summary], None],
    with_password: bool = False,
) -> None:
    """Drive a session's study as a Prefect flow: below the present one, or in the API of the settings, or in a server.

    For a study that is over, nothing is started. Where the home's own server does not start, the study runs without
    Prefect, and says so.

    Args:
        action: begins the name of the flow run: tune, resume, extend or rerun.
        prefect: False drives it without Prefect.
        cure: words about a study that gave up, or has no result.
        ended: called once the study has ended by itself, before Prefect is waited for.
        with_password: whether ``session.inform`` is told the password of the home's own server.

    Raises:
        HpoError: Prefect is not installed, or the API of the settings does not answer; or of the study.
    """
    if session.is_over:
        session.inform(f"study {session.name} is finished: there is nothing left to train")
        ended(*session.end_again())
        return
    services = {"Prefect API": prefect, "MLflow projection": bool(session.trackers.uri)}
    started = [session.spec.cluster.title, *(title for title, is_used in services.items() if is_used)]
    session.inform(f"starting: {', '.join(started)} ...")
    if not prefect:
        session.start_cluster()
        ended(*session.run())
        return
    if find_spec("prefect") is None:
        raise HpoError(
            "Prefect is not installed, and the study is to run in it. Install it with `pip install 'hpo-core[all]'`, "
            "or run the study without it: --no-prefect, or prefect: off."
        )
    if is_in_flow_run():
        from hpo_flows.study_run.study_flow import run_as_subflow

        run_as_subflow(session, action, cure=cure, ended=ended)
    elif (api := configured_api()) is not None:
        check_api(api)
        session.start_cluster()
        with _environment(client_environment()), _quiet_console(), patient_prefect():
            import_module("hpo_flows.study_run.study_flow").run_study(session, action, cure=cure, ended=ended)
    else:
        with closing(SharedServer(session.home.folder / "prefect")) as server:
            server.start()
            session.start_cluster()
            with _environment(client_environment(server.folder)):
                flow = import_module("hpo_flows.study_run.study_flow")  # takes seconds, beside server and cluster
                try:
                    server.wait()
                except PrefectServerError as error:
                    session.say(f"Prefect does not run this study, which goes on: {terminal_text(str(error))}")
                    ended(*session.run())
                    return
                word = f"password {server.auth}" if with_password else f"password: see auth in {server.secrets_file}"
                session.inform(f"Prefect UI while it runs: {server.url} ({word})")
                with _quiet_console(), patient_prefect(server.api_url, server.auth):
                    flow.run_study(session, action, cure=cure, ended=ended)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    # Set variables, for what Prefect reads when it is imported, and put them back.
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _quiet_console() -> Iterator[None]:
    # Keep Prefect's lines off the terminal, where the study has lines of its own; its API gets them.
    from prefect.logging.configuration import setup_logging
    from prefect.logging.handlers import PrefectConsoleHandler

    from hpo_flows.prefect_api.api_watch import api_is_unreachable

    setup_logging()
    for handler in logging.getLogger("prefect._internal").handlers:  # also after the study: it tries on for a while
        handler.addFilter(_is_not_prefects)
    handlers = [each for each in logging.getLogger().handlers if isinstance(each, PrefectConsoleHandler)]
    for handler in handlers:
        handler.addFilter(_is_not_prefects)
    raises, logging.raiseExceptions = logging.raiseExceptions, False  # an API that is away is said in one sentence
    try:
        yield
    finally:
        logging.raiseExceptions = raises and not api_is_unreachable()  # what could not be sent is still tried
        for handler in handlers:
            handler.removeFilter(_is_not_prefects)


def _is_not_prefects(record: logging.LogRecord) -> bool:
    return not record.name.startswith("prefect")
