"""A session that Prefect shows: a study driven in this process, by a command or by a call from Python.

Prefect shows it in a process of its own (``prefect_process.py``), in the API of the settings or in the home's own
server, or not at all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from importlib.util import find_spec
from types import TracebackType
from typing import Self

from hpo_core.model.errors import HpoError, StudyNotFoundError
from hpo_core.security.masking import masked
from hpo_core.security.untrusted_text import terminal_text
from hpo_flows.prefect_api.connection import check_access, check_api, client_environment, configured_api
from hpo_flows.prefect_api.shared_server import SharedServer
from hpo_flows.prefect_pages.prefect_process import ERROR_LENGTH, PrefectProcess, ShowRequest, shown_parameters, tags_of
from hpo_flows.prefect_pages.shown_runs import SHOWN_RUNS
from hpo_flows.study_run.session import Session


@dataclass
class ShownSession:
    """Context manager: closes a session at its end, and tells Prefect how it ended.

    Args:
        session: not started yet.
        action: begins the name of the flow run: tune, resume, extend or rerun.
        shown: whether Prefect shows it.
        waits: whether the end waits until Prefect has it all.
        say: told lines about the server and its address.
        warn: told what went wrong in Prefect; the study goes on.
        on_cancel: called, from another thread, once somebody cancelled the flow run.
        with_password: whether ``say`` is told the password of the home's own server.
    """

    session: Session
    action: str
    _: KW_ONLY
    shown: bool
    waits: bool
    say: Callable[[str], None]
    warn: Callable[[str], None]
    on_cancel: Callable[[], None]
    with_password: bool = False
    _began: float = field(default_factory=time.time, init=False)
    _environment: dict[str, str] = field(default_factory=dict, init=False)
    _server: SharedServer | None = field(default=None, init=False)
    _pages: PrefectProcess | None = field(default=None, init=False)
    _told_address: str = field(default="", init=False)
    _has_ended: bool = field(default=False, init=False)

    def __enter__(self) -> Self:
        return self

    def start(self) -> None:
        """Begin to start what the study needs, all at once: the home's own Prefect server, workers, pages.

        Raises:
            HpoError: Prefect is not installed, or the API of the settings does not answer.
        """
        if self.shown:
            self._find_api()
        self._tell_address()
        self.session.start_cluster()
        if self.shown:
            self._start_pages()

    def ended(self, links: Mapping[str, str]) -> None:
        """The study has ended by itself.

        Args:
            links: title to target, see ``StudyPages.finish``.
        """
        self._has_ended = True
        if self._pages is not None:
            self._pages.end(links=links)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pages is not None:  # the first word about the end counts
            if isinstance(error, Exception):
                self._pages.end(error=masked(str(error))[:ERROR_LENGTH] or type(error).__name__)
            else:
                self._pages.end(interrupted=True)
        try:
            self.session.close()
        finally:
            if self._has_ended and self._server is not None:
                self.session.wait_for("handing over to Prefect")
            if self._has_ended and self.waits and self._pages is not None and not self._pages.wait():
                self.warn("Prefect does not show all of this study; the journal has it.")
            if self._server is not None:
                self._server.let_go()

    # Prefect.

    def _find_api(self) -> None:
        """Check the API that the user's settings name; without one, begin to start the home's own server."""
        if find_spec("prefect") is None:
            raise HpoError(
                "Prefect is not installed, and the study is to be shown in it. Install it with `pip install "
                "'hpo-core[all]'`, or run the study without it: --no-prefect, or prefect: off."
            )
        if (api := configured_api()) is not None:
            check_api(api)
            check_access(api)
            self._environment = client_environment()
            return
        self._server = SharedServer(self.session.home.folder / "prefect")
        self._environment = client_environment(self._server.folder)
        self._server.start()

    def _start_pages(self) -> None:
        session = self.session
        try:
            start = session.journal.info(session.name).entries
        except StudyNotFoundError:
            start = 1
        request = ShowRequest(
            study=session.name,
            action=self.action,
            start=start,
            began=self._began,
            parameters=shown_parameters(session.spec),
            tags=tags_of(session.spec),
            server_folder="" if self._server is None else str(self._server.folder),
            runs_folder=str(session.home.make_folder(SHOWN_RUNS)),
        )
        try:
            self._pages = PrefectProcess(
                request,
                session.folder,
                journal=session.journal_url,
                environment=os.environ | self._environment,
                say=self.warn,
                on_shown=self._look_and_tell_address,
                on_cancel=self.on_cancel,
            )
        except (OSError, HpoError) as error:
            self.warn(f"Prefect does not show this study, which goes on: {terminal_text(str(error))}")

    def _look_and_tell_address(self) -> None:
        """Read the address again, and tell it: the process that shows the study may have started another server."""
        if self._server is not None:
            self._server.read_address()
        self._tell_address()

    def _tell_address(self) -> None:
        """Tell the address of the home's own Prefect server, if known, once."""
        server = self._server
        if server is not None and server.url not in ("", self._told_address):
            self._told_address = server.url
            # the password itself to a person only: what is no terminal may be a log that others read
            word = f"password {server.auth}" if self.with_password else f"password: see auth in {server.secrets_file}"
            self.say(f"Prefect UI while it runs: {server.url} ({word}), once its server has started")
