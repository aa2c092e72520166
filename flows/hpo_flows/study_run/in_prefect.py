"""A session as a Prefect flow: find the Prefect API, or start the home's own server, and run the flow there."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from importlib import import_module
from importlib.util import find_spec

from hpo_core.model.errors import HpoError
from hpo_core.security.untrusted_text import terminal_text
from hpo_flows.prefect_api.connection import (
    PrefectServerError,
    check_api,
    client_environment,
    configured_api,
    is_in_flow_run,
    patient_prefect,
)
from hpo_flows.prefect_api.shared_server import SharedServer
from hpo_flows.study_run.session import Session

STILL_SECONDS = 5.0
"""Seconds of a start after which a person is told that it goes on; the next time after twice as long."""
_FLOW = "hpo_flows.study_run.study_flow"  # which imports Prefect


def drive_study(session: Session, *, prefect: bool, with_password: bool = False) -> None:
    """Drive a session's study as a Prefect flow: below the present one, or in the API of the settings, or in a server.

    For a study that is over, nothing is started. Where the home's own server does not start, the study runs without
    Prefect, and says so.

    Args:
        prefect: False drives it without Prefect.
        with_password: whether ``session.inform`` is told the password of the home's own server.

    Raises:
        HpoError: Prefect is not installed, or the API of the settings does not answer; or of the study.
    """
    if session.is_over:
        session.inform(f"study {session.name} is finished: there is nothing left to train")
        session.ended(*session.end_again())
        return
    if prefect and is_in_flow_run():
        from prefect import get_run_logger

        session.speak_by(get_run_logger())
    services = {"Prefect API": prefect, "copy to MLflow": any(tracker.uri for tracker in session.trackers)}
    started = [session.spec.cluster.title, *(title for title, is_used in services.items() if is_used)]
    session.inform(f"starting: {', '.join(started)} ...")
    threading.Thread(target=_say_that_it_starts, args=(session,), name="starting", daemon=True).start()
    with ExitStack() as stack:
        stack.callback(session.begun.set)
        if not prefect:
            session.start_cluster()
            session.ended(*session.run())
            return
        if find_spec("prefect") is None:
            raise HpoError(
                "Prefect is not installed, and the study is to run in it. Install it with "
                "`pip install 'hpo-core[all]'`, or run the study without it: --no-prefect, or prefect: off."
            )
        if is_in_flow_run():
            session.start_cluster()
            import_module(_FLOW).run_as_subflow(session)
            return
        own: tuple[str, str] | None = None
        if (api := configured_api()) is not None:
            check_api(api)
            session.start_cluster()
        else:
            server = stack.enter_context(closing(SharedServer(session.home.folder / "prefect")))
            server.start()
            session.start_cluster()
            stack.enter_context(_environment(client_environment(server.folder)))
            import_module(_FLOW)  # takes seconds, beside server and cluster
            try:
                server.wait()
            except PrefectServerError as error:
                session.say(f"Prefect does not run this study, which goes on: {terminal_text(str(error))}")
                session.ended(*session.run())
                return
            word = f"password {server.auth}" if with_password else f"password: see auth in {server.secrets_file}"
            session.inform(f"Prefect UI while it runs: {server.url} ({word})")
            own = server.api_url, server.auth
        stack.enter_context(_quiet_console())
        stack.enter_context(patient_prefect(own))
        import_module(_FLOW).run_study(session)


def _say_that_it_starts(session: Session) -> None:
    began, seconds = time.monotonic(), STILL_SECONDS
    while not session.begun.wait(seconds):
        session.inform(f"still starting, {time.monotonic() - began:.0f} s so far ...")
        seconds *= 2


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

    from hpo_flows.prefect_api.connection import api_is_unreachable

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
