"""``hpo tune-packing``: how far jobs should oversubscribe the user's devices, measured there."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text

from hpo_core.cli.output import err, out, print_json, print_rows
from hpo_core.execution.ratio_tuning import Found, RatioTuner, Together, checked_ratios
from hpo_core.execution.single_trial import first_job, parse_params
from hpo_core.home import Home
from hpo_core.journal.measurements import measurements_of
from hpo_core.model.devices.measurement import Measurement
from hpo_core.model.devices.memory_words import memory_words
from hpo_core.model.errors import SpecError
from hpo_core.placement.demands import objective_digest
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.spec import PackingSpec, StudySpec
from hpo_core.spec.packing import DEFAULT
from hpo_flows.dask.executor import DaskExecutor
from hpo_flows.early_interrupt import raise_at_interrupt

DEFAULT_RATIOS = "1,1.5,2,2.5,3,4"
START_ENDS_SECONDS = 30.0
"""How long a start of the cluster that was given up may take to end."""


def read_ratios(text: str) -> list[float]:
    """Ratios from the command line.

    Raises:
        SpecError: one is no number, or makes no sense.

    >>> read_ratios("2, 1.5")
    [1.0, 1.5, 2.0]
    """
    try:
        given = [float(part) for part in text.split(",")]
    except ValueError:
        raise SpecError(f"--ratios {text!r}: write numbers with commas between them, as {DEFAULT_RATIOS}.") from None
    return checked_ratios(given)


def tune_packing(
    spec: StudySpec,
    home: Home,
    *,
    params: Sequence[str],
    ratios: Sequence[float],
    seconds: float,
    units: int | None,
    as_json: bool,
) -> None:
    """Measure, print a table, and keep the best ratio of each architecture in the history."""
    objective = spec.objective
    if objective is None:
        raise SpecError(f"Study {spec.study!r}: objective: is required to train; write package.module:function.")
    job = first_job(spec, parse_params(params))
    raise_at_interrupt()
    signal.signal(signal.SIGTERM, _as_interrupt)
    journal = home.open_journal()
    folder = Path(tempfile.mkdtemp(prefix="tune-packing-", dir=home.make_folder()))
    try:
        history = measurements_of(journal)
        code = objective_digest(objective, spec.pythonpath)
        known = history.read(objective, code)
        importable = spec.model_copy(update={"pythonpath": home.import_folders(spec)})
        _say(f"{objective} with {', '.join(f'{name}={value}' for name, value in job.params.items())}")
        tuner = RatioTuner(
            importable,
            job.params,
            ratios=ratios,
            seconds=seconds,
            units=units,
            executors=_started,
            folder=folder,
            past=known,
            say=_say,
        )
        found = tuner.run()
        history.add(tuner.measured)  # first: a full table of measurements drops no ratio for them
        history.add([_kept(spec, code, name, one) for name, one in found.items()])
    finally:
        journal.close()
        shutil.rmtree(folder, ignore_errors=True)
    _print(found, spec.packing or PackingSpec(), as_json)


@contextlib.contextmanager
def _started(spec: StudySpec, folder: Path) -> Iterator[DaskExecutor]:
    """The cluster that the study names, for as long as one ratio is measured."""
    executor = DaskExecutor(spec, str(folder))
    errors: list[BaseException] = []

    def start() -> None:
        # Ctrl-C reaches the whole process group; what is started from here is ended by us, in order
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            executor.start()
        except BaseException as error:
            errors.append(error)

    starting = threading.Thread(target=start, name="start-cluster", daemon=True)
    starting.start()
    try:
        while starting.is_alive():
            starting.join(0.2)
        if errors:
            raise errors[0]
        executor.take_over()
        yield executor
    finally:
        executor.abandon_start()
        starting.join(START_ENDS_SECONDS)
        executor.close()


def _as_interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def _kept(spec: StudySpec, code: str, name: str, found: Found) -> Measurement:
    assert spec.objective is not None and found.best.ratio is not None
    return Measurement(
        objective=spec.objective,
        code=code,
        architecture=name,
        params={},
        study=spec.study,
        measured_at=time.time(),
        oversubscribe=found.best.ratio,
        speedup=round(found.speedup, 4),
    )


def _say(line: str) -> None:
    err.print(Text(terminal_text(line), style="dim"), soft_wrap=True)


def _print(found: dict[str, Found], packing: PackingSpec, as_json: bool) -> None:
    if as_json:
        plain = {
            name: msgspec.to_builtins(one) | {"best": one.best.ratio, "speedup": round(one.speedup, 4)}
            for name, one in found.items()
        }
        print_json(plain)
        return
    for name, one in found.items():
        out.print(Text(terminal_text(name), style="bold"))
        print_rows(out, [_row(row, one) for row in (one.alone, *one.rows)])
        if one.end:
            out.print(Text(terminal_text(f"Not measured further: {one.end}.")), soft_wrap=True)
        words = f"Best: {one.best.ratio:g}, {one.speedup:.2f} times the units per second of ratio 1. It is kept in the"
        out.print(Text(f"{words} history (hpo history)."), soft_wrap=True)
        stated = next((key for key in (name, DEFAULT) if key in packing.oversubscribe), None)
        if stated is not None:
            amount = f"packing.oversubscribe.{stated} = {packing.oversubscribe[stated]:g}"
            out.print(
                Text(f"This study states {amount}, which wins: leave it out to use the ratio found.", style="yellow"),
                soft_wrap=True,
            )


def _row(row: Together, found: Found) -> dict[str, Any]:
    first = found.rows[0]
    return {
        "ratio": "alone" if row.ratio is None else f"{row.ratio:g}{' *' if row is found.best else ''}",
        "jobs at once": row.jobs,
        "units/s": f"{row.units_per_second:.4g}",
        "of ratio 1": f"{row.units_per_second / first.units_per_second:.2f}",
        "peak memory": f"{memory_words(row.memory)} of {memory_words(row.capacity)}",
    }
