"""Prefect's ``get_run_logger()`` and ``prefect.runtime.flow_run`` in a training function that asks for them.

The process of an attempt does not talk to Prefect's API, which a worker elsewhere might not reach. The flow run is
known there by its id and name; what is logged travels with the attempt's report, and the flow's process writes it to
the log of the job's task run. It is in the attempt's own log as well.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

from hpo_core.model.trial import LogLine

MOST_LINES = 200
"""Most lines of one attempt that reach Prefect: its last ones."""
LINE_LENGTH = 2_000
"""Most characters of such a line."""
Lines = deque[LogLine]


class _Collector(logging.Handler):
    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append((record.created, record.levelno, self.format(record)[:LINE_LENGTH]))
        except Exception:
            self.handleError(record)


@contextmanager
def in_flow_run(flow_run: tuple[str, str]) -> Iterator[Lines]:
    """Have Prefect know the flow run while a function trains; gives the lines that it logs.

    Args:
        flow_run: id and name; empty where the study runs without Prefect: then there is a logger, and no flow run.
    """
    lines: Lines = deque(maxlen=MOST_LINES)
    try:
        from prefect.context import FlowRunContext, TaskRunContext
    except ImportError:  # the worker has none: the function's own import says so
        yield lines
        return
    if FlowRunContext.get() or TaskRunContext.get():  # called within a flow of the user's own
        yield lines
        return
    from prefect.logging.configuration import setup_logging

    setup_logging()  # once in a process; the first run logger would do so, and put handlers in place that need the API
    console = logging.StreamHandler(sys.stderr)
    console.setFormatter(logging.Formatter("%(asctime)s | %(levelname)s | %(message)s"))
    logger = logging.getLogger("prefect.flow_runs" if flow_run[0] else "prefect.task_runs")
    before = logger.handlers, logger.propagate, logger.level
    logger.handlers, logger.propagate = [console], False
    if flow_run[0]:  # else nobody takes the lines out of the report before it is recorded
        logger.addHandler(_Collector(lines))
    logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
    try:
        with _context(*flow_run):
            yield lines
    finally:
        logger.handlers, logger.propagate = before[:2]
        logger.setLevel(before[2])


def _context(identity: str, name: str) -> Any:
    # A context of Prefect's with what its logger and runtime read: without a flow run that of a task by itself.
    from prefect import Flow, Task
    from prefect.client.schemas.objects import FlowRun, TaskRun
    from prefect.context import FlowRunContext, TaskRunContext

    if identity:
        run = FlowRun(id=UUID(identity), name=name, flow_id=uuid4())
        return FlowRunContext.model_construct(flow=Flow(lambda: None, name="tune"), flow_run=run, parameters={})
    alone = TaskRun(name="training", task_key="train", dynamic_key="0")
    return TaskRunContext.model_construct(task=Task(lambda: None, name="train"), task_run=alone, parameters={})
