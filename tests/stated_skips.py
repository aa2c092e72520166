"""A skip that nobody stated fails the full run: a test that never runs anywhere is a gap that has to be named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

STATED = Path(__file__).with_name("stated_skips.txt")


class StatedSkips:
    """Collects the reasons of skipped tests, and fails the run for those that no line of the list matches."""

    def __init__(self, patterns: list[re.Pattern[str]]) -> None:
        self._patterns = patterns
        self.not_stated: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._look(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._look(report)

    def _look(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not any(pattern.search(reason) for pattern in self._patterns):
            self.not_stated.setdefault(reason, []).append(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for reason, tests in self.not_stated.items():
            terminalreporter.write_line(
                f"SKIPPED, and not stated in {STATED.name}: {reason} ({len(tests)} tests, {tests[0]} the first); "
                "install what is missing, or state it with its reason",
                red=True,
            )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.not_stated and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def patterns(path: Path = STATED) -> list[re.Pattern[str]]:
    """One regular expression a line, for a part of the reason; ``#`` begins a comment."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [re.compile(line) for line in lines if line]
