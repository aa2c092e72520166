"""Prefect's run logger and runtime in a training function, in a flow run and without one."""

from __future__ import annotations

import logging
import uuid
from typing import Any

import pytest

from hpo_flows.prefect_pages.run_logger import MOST_LINES, in_flow_run


def logs(said: list[Any]) -> None:
    from prefect import get_run_logger
    from prefect.runtime import flow_run

    get_run_logger().warning("loss is %.1f", 0.5)
    said.append((flow_run.id, flow_run.name))


def test_the_logger_s_lines_are_collected_and_the_flow_run_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[Any] = []
    identity = str(uuid.uuid4())
    with in_flow_run((identity, "")):
        handlers = logging.getLogger("prefect.flow_runs").handlers
    with in_flow_run((identity, "tune-digits")) as lines:
        logs(said)
    assert said == [(identity, "tune-digits")]
    ((_, level, line),) = lines
    assert (level, line) == (logging.WARNING, "loss is 0.5")
    assert "| WARNING | loss is 0.5" in capsys.readouterr().err, "the attempt's own log has it, too"
    assert logging.getLogger("prefect.flow_runs").handlers != handlers


def test_without_prefect_there_is_a_logger_and_no_flow_run(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[Any] = []
    with in_flow_run(("", "")) as lines:
        logs(said)
    assert said == [(None, None)] and "loss is 0.5" in capsys.readouterr().err
    assert not lines, "a report's lines would be recorded in the journal"


def test_the_last_lines_are_kept() -> None:
    from prefect import get_run_logger

    with in_flow_run((str(uuid.uuid4()), "tune-digits")) as lines:
        for number in range(MOST_LINES + 5):
            get_run_logger().info("%d", number)
    assert len(lines) == MOST_LINES and lines[-1][2] == str(MOST_LINES + 4)


def test_a_flow_of_the_user_s_keeps_its_own_context() -> None:
    from prefect import flow
    from prefect.context import FlowRunContext

    outer = FlowRunContext.model_construct(flow=flow(lambda: None, name="own"), parameters={})
    with outer, in_flow_run((str(uuid.uuid4()), "tune-digits")):
        assert FlowRunContext.get() is outer
