"""What ``hpo report NAME --live`` does: serves the report until it is interrupted."""

from __future__ import annotations

import signal
from typing import Any

from rich.text import Text

from hpo_core.cli.output import out
from hpo_core.home import Home
from hpo_core.model.errors import HpoError
from hpo_core.replay.audit import damage_named
from hpo_core.report.live import LiveReport, LocalServer
from hpo_core.spec import StudySpec
from hpo_core.tracking.tracker_links import optuna_links, read_place


def serve_report(home: Home, name: str, port: int) -> None:
    """Serve the report of one study, running or not, until Ctrl-C or SIGTERM.

    Raises:
        HpoError: there is no such study, it is damaged, or the port is taken.
    """
    source = home.read_journal()
    folder = home.study_folder(name)

    with damage_named(source, name):
        first = next(iter(source.entries(name, 0, 1)))
    copies = optuna_links(home, StudySpec.from_journal(first.stimulus.spec))  # type: ignore[union-attr]

    def links() -> dict[str, str]:
        place = read_place(folder)
        return {"Study folder": str(folder)} | ({} if place is None else {"MLflow": place.url}) | copies

    report = LiveReport(source, name, folder, links)
    with damage_named(source, name):
        report.answer("version")
    try:
        server = LocalServer(report.answer, port)
    except OSError as error:
        raise HpoError(
            f"--port {port} cannot be used ({error.strerror or error}). Leave it out for a free one."
        ) from None
    signal.signal(signal.SIGTERM, _as_interrupt)
    out.print(Text(f"{name}: {server.url}"), soft_wrap=True)
    out.print(Text("This page follows the study. Ctrl-C ends it; the study goes on.", style="dim"), soft_wrap=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
        source.close()


def _as_interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt
