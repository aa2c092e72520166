"""Result of a study as data: best trial, tables, plots; read from the journal alone, of a running study as well."""

from __future__ import annotations

import shutil
import weakref
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from pydantic_core import CoreSchema, core_schema

from hpo_core.checkpoints.storage import local_path
from hpo_core.home import Home, checked_name
from hpo_core.model.errors import CheckpointError, HpoError, SpecError
from hpo_core.model.features import FEATURES, feature
from hpo_core.model.trial import Checkpoint, Params
from hpo_core.replay.audit import damage_named
from hpo_core.security.masking import without_credentials
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.views.formatting import number
from hpo_core.views.series import Series, read_series
from hpo_core.views.summary import FrontMember, StudySummary, summarize

if TYPE_CHECKING:
    import pandas

    from hpo_core.report.pictures import Plots


class TrialResult:
    """A trial with the result it is known for: parameters, values, checkpoint.

    Attributes:
        trial: its number.
        params: the configuration.
        values: the objectives by name, in the user's metric (not negated).
        resource: units of training (epochs, steps) behind them.
    """

    def __init__(self, study: Result, trial: int, values: dict[str, float], resource: int, params: Params) -> None:
        self.trial = trial
        self.params = dict(params)
        self.values = values
        self.resource = resource
        self._study = study

    @property
    def value(self) -> float:
        """The first objective."""
        return next(iter(self.values.values()))

    @property
    def checkpoint(self) -> str | None:
        """Path of the checkpoint on this machine, or its URL; None where the trial has none."""
        kept = self._checkpoint
        if kept is None:
            return None
        place = local_path(self._study.folder, kept.uri, self._study.spec.checkpoint_base)
        return kept.uri if place is None else str(place)

    def state(self) -> dict[str, Any]:
        """State dicts of all that was tracked (``trial.track``), by name.

        Raises:
            CheckpointError: there is no checkpoint, or it is damaged.
        """
        from hpo_core.checkpoints.files import load

        if self._checkpoint is None:
            raise CheckpointError(
                f"Trial {self.trial} of study {self._study.name!r} has no checkpoint: its training function tracks "
                "nothing (trial.track), or the file was removed."
            )
        tracked: dict[str, Any] = load(self._study.folder, self._checkpoint, self._study.spec.checkpoint_base)[
            "tracked"
        ]
        return tracked

    def load(self, model: Any, name: str | None = None) -> Any:
        """Load the checkpoint's weights into a model and return it.

        Args:
            model: built as the training function builds it from ``params``; anything with ``load_state_dict``.
            name: under which it was tracked; None: ``model``, or the only object that was tracked.

        Raises:
            CheckpointError: there is no checkpoint, or no such object in it.
        """
        tracked = self.state()
        wanted = name or ("model" if "model" in tracked or len(tracked) != 1 else next(iter(tracked)))
        if wanted not in tracked:
            raise CheckpointError(
                f"The checkpoint of trial {self.trial} holds no {wanted!r}; it holds "
                f"{', '.join(map(repr, tracked)) or 'nothing'}. Say which one is the model: load(model, name=...)."
            )
        model.load_state_dict(tracked[wanted])
        return model

    @property
    def mlflow_run_id(self) -> str | None:
        """ID of the trial's run in MLflow; None where it is not tracked, or out of reach."""
        place, uri = self._study._mlflow_place(), self._study.tracking_uri
        if place is None or uri is None:
            return None
        run: str | None = feature("MLflow", "mlflow_client").trial_run_id(
            uri, place.experiment_id, place.run_id, self.trial
        )
        return run

    @property
    def _checkpoint(self) -> Checkpoint | None:
        trial = self._study.study.state.trials[self.trial]
        kept = {result.resource: result.checkpoint for result in trial.results}.get(self.resource)
        return None if kept is None or kept.resource in trial.condemned else kept

    def _reference(self) -> dict[str, Any]:
        parts = {"trial": self.trial, "values": self.values, "resource": self.resource, "params": self.params}
        return parts | {"study": self._study._reference()}

    @classmethod
    def _from_reference(cls, reference: Any) -> TrialResult:
        if isinstance(reference, cls):
            return reference
        return cls(**reference | {"study": Result._from_reference(reference["study"])})

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> CoreSchema:
        return _json_schema(cls)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={number(value, 6)}" for name, value in self.values.items())
        return f"TrialResult(trial={self.trial}, {values}, resource={self.resource}, params={self.params})"

    def _repr_html_(self) -> str | None:
        members = [FrontMember(self.trial, self.resource, self.values, self.params)]
        return feature("report", "pictures").members_table(members) if "report" in FEATURES else None


class Result:
    """A study, finished or not: what it found, as data.

    Read from the journal when it is first asked for; :meth:`refresh` reads what a running study has added. It may be
    pickled, or written as JSON by Prefect (``result_serializer="json"``), and read by other processes that see the same
    home.

    Attributes:
        name: the study's.
        home: folder of the study's home; None where the study kept nothing (``home=None``).
    """

    def __init__(self, name: str, home: Home, *, temporary: bool = False) -> None:
        self.name = checked_name(name)
        self._home = home
        self._temporary = temporary
        if temporary:
            weakref.finalize(self, shutil.rmtree, home.folder, ignore_errors=True)

    def _reference(self) -> dict[str, str]:
        """Arguments of :func:`load` by which another process reads the same study.

        Raises:
            HpoError: the study kept nothing.
        """
        if self._temporary:
            raise HpoError(
                f"The result of study {self.name!r} lies in a temporary folder (home=None) that ends with this object; "
                "take what is needed of it (result.best.params), or give the study a home."
            )
        journal = without_credentials(self._home.journal_url)
        return {"name": self.name, "home": str(self._home.folder), "journal": journal}

    @classmethod
    def _from_reference(cls, reference: Any) -> Result:
        return reference if isinstance(reference, cls) else load(**reference)

    def __reduce__(self) -> Any:
        return load, tuple(self._reference().values())

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> CoreSchema:
        return _json_schema(cls)

    @property
    def folder(self) -> Path:
        """The study's folder: checkpoints, logs, report."""
        return self._home.study_folder(self.name)

    @cached_property
    def _series(self) -> Series:
        source = self._home.read_journal()
        try:
            with damage_named(source, self.name):
                series = read_series(source.entries(self.name))
        finally:
            source.close()  # it opens again for what is read later, such as `study.to_optuna()`
        series.study.journal = source
        return series

    def refresh(self) -> Result:
        """Read the journal again; returns this result."""
        for name in ("_series", "summary"):
            vars(self).pop(name, None)
        return self

    @property
    def study(self) -> Study:
        """The replayed study, for what has no property here."""
        return self._series.study

    @property
    def spec(self) -> StudySpec:
        """The description; ``result.spec.to_yaml()`` writes the study file."""
        return self.study.spec

    @cached_property
    def summary(self) -> StudySummary:
        """Status, counts and best result (:class:`hpo_core.views.summary.StudySummary`)."""
        return summarize(self.study)

    @property
    def status(self) -> str:
        """``finished``, ``halted`` (a stop rule or a person ended it; it can go on) or ``open``."""
        return self.summary.status

    @property
    def reason(self) -> str:
        """Why it halted; else empty."""
        return self.summary.reason

    @property
    def best(self) -> TrialResult:
        """The best feasible result.

        Raises:
            HpoError: there is no finite, feasible result.
        """
        if not self.front:
            from hpo_core.views.failure_reasons import no_result_words

            words = no_result_words(self.study) or "no job has reported a finite, feasible value yet"
            raise HpoError(f"Study {self.name!r} has no result: {words}.")
        found = self.study.best
        assert found is not None
        from hpo_core.views.summary import values_of

        params = self.study.state.trials[found.trial].params
        return TrialResult(self, found.trial, values_of(self.spec, found), found.resource, params)

    @property
    def front(self) -> list[TrialResult]:
        """The Pareto front, the best in the first metric first; with one metric the best result alone."""
        return [TrialResult(self, one.trial, one.values, one.resource, one.params) for one in self.summary.front]

    # Tables.

    @property
    def trials(self) -> pandas.DataFrame:
        """Table with one row a trial, by its number.

        Columns: ``trial`` (the index); ``state``, such as ``winner``, ``running``, ``not promoted``, ``diverged`` or
        ``abandoned``; a column a metric: values of the trial's best feasible result; ``at``: units of training behind
        that result; ``trained``: units in all, its ancestors' included; ``bracket``; ``parent``: the trial whose
        checkpoint it went on from (PBT); ``attempts``; ``params.NAME``: the configuration. A cell is empty where there
        is no such value.
        """
        series, rows = self._series, []
        from hpo_core.views.states import trial_state

        metrics = [metric.name for metric in self.spec.objectives]
        for trial in series.trials:
            losses = [(one.loss, one.resource, one) for one in trial.results if one.loss is not None]
            best = min((one for one in losses if not one[2].violation), default=None, key=lambda one: one[:2])
            values = {} if best is None else best[2].metrics
            rows.append(
                {
                    "trial": trial.number,
                    "state": trial_state(series.study, trial),
                    **{metric: values.get(metric) for metric in metrics},
                    "at": None if best is None else best[1],
                    "trained": trial.resource,
                    "bracket": trial.bracket,
                    "parent": trial.parent,
                    "attempts": trial.attempts,
                    **{f"params.{name}": value for name, value in trial.params.items()},
                }
            )
        known = ["trial", "state", *metrics, "at", "trained", "bracket", "parent", "attempts"]
        table = _frame(rows, [*known, *(f"params.{name}" for name in self.spec.space)]).set_index("trial")
        return table.astype({"at": "Int64", "parent": "Int64"})  # whole numbers, with empty cells

    @property
    def results(self) -> pandas.DataFrame:
        """Table with one row a result: a job that reached its target.

        Columns: ``trial``; ``resource``: units of training behind it; a column for each value that was reported.
        """
        rows = [
            {"trial": trial.number, "resource": result.resource, **result.metrics}
            for trial in self._series.trials
            for result in trial.results
        ]
        return _frame(rows, ["trial", "resource", *(metric.name for metric in self.spec.objectives)])

    @property
    def curves(self) -> pandas.DataFrame:
        """Table with one row a report within a job: the first metric while a trial trains, thinned where it is long.

        Columns: ``trial``; ``resource``: units of training at the report; the metric's name.
        """
        name = self.spec.metric.name
        rows = [
            {"trial": trial, "resource": resource, name: value}
            for trial, curve in sorted(self._series.curves.items())
            for resource, value in sorted(curve.items())
        ]
        return _frame(rows, ["trial", "resource", name])

    @property
    def jobs(self) -> pandas.DataFrame:
        """Table with one row an attempt of a job, in the order of their end; those that run come last.

        Columns: ``trial``; ``attempt``; ``target``: units of training to have at its end; ``start``, ``end`` and
        ``seconds``: seconds since the first grant, without times in which no controller ran; ``worker``; ``outcome``,
        such as ``completed``, ``error``, ``lost`` or ``running``; ``value`` of the first metric; ``slots`` it took.
        """
        rows = [
            {
                "trial": span.trial,
                "attempt": span.attempt,
                "target": span.target,
                "start": span.start,
                "end": span.end,
                "seconds": span.end - span.start,
                "worker": span.worker,
                "outcome": "running" if span.outcome is None else str(span.outcome),
                "value": span.value,
                "slots": span.slots,
            }
            for span in self._series.spans
        ]
        known = ["trial", "attempt", "target", "start", "end", "seconds", "worker", "outcome", "value", "slots"]
        return _frame(rows, known)

    # Pictures.

    @property
    def plot(self) -> Plots:
        """Plotly figures of the study."""
        found: Plots = feature("report", "pictures").Plots(self._series)
        return found

    @property
    def report(self) -> Path:
        """The HTML report, written now."""
        with closing(self._home.read_journal()) as source:
            page: Path = feature("report", "study_page").write_report(
                source.entries(self.name), self._home.report_path(self.name)
            )
        return page

    @property
    def tracking_uri(self) -> str | None:
        """MLflow tracking URI of the study; None where it is not tracked."""
        return self._home.tracking_uri(self.spec)

    @property
    def mlflow_run_id(self) -> str | None:
        """ID of the study's run in MLflow, once its copy is complete; None where it is not tracked or out of reach.

        Where MLflow cannot be reached, a warning says why after one attempt.
        """
        place = self._mlflow_place()
        return None if place is None else place.run_id

    def _mlflow_place(self) -> Any:
        return None if self._temporary else feature("MLflow", "trackers").completed_place(self._home, self.study)

    def __repr__(self) -> str:
        best = f", best {self.best!r}" if self.front else ""
        return f"Result({self.name!r}, {self.status}, {len(self.study.state.trials)} trials{best})"

    def _repr_html_(self) -> str | None:
        return feature("report", "pictures").study_cell(self.study) if "report" in FEATURES else None


def _json_schema(kind: type[Result] | type[TrialResult]) -> CoreSchema:
    """Schema by which pydantic, and through it Prefect, writes a result as JSON: as a reference to its study."""
    return core_schema.no_info_plain_validator_function(
        kind._from_reference,
        serialization=core_schema.plain_serializer_function_ser_schema(kind._reference),
    )


for _kind in (Result, TrialResult):  # as a pydantic model has it, so that it is written within a list or mapping, too
    _kind.__pydantic_serializer__ = TypeAdapter(_kind).serializer  # type: ignore[union-attr]


def load(name: str, home: str | Path = "", journal: str | None = None) -> Result:
    """The result of a study, running or finished, from the journal alone.

    Args:
        name: of the study.
        home: its home folder; default: ``HPO_HOME``, or ``.hpo`` here.
        journal: database URL of the journal; default: ``HPO_JOURNAL``, or the home's own.

    Raises:
        StudyNotFoundError: the journal has no such study.
    """
    if home is None:
        raise SpecError("hpo.load: home=None keeps nothing that could be loaded; leave home out, or name the folder.")
    place = Home(home, journal)
    source = place.read_journal()
    try:
        source.info(name)
    finally:
        source.close()
    return Result(name, place)


def _frame(rows: list[dict[str, Any]], columns: list[str]) -> pandas.DataFrame:
    """A table; these columns come first, and are there without any row."""
    try:
        import pandas
    except ImportError:
        raise SpecError("Tables of a result are pandas DataFrames: `pip install pandas`.") from None
    more = dict.fromkeys(name for row in rows for name in row)
    return pandas.DataFrame(rows, columns=list(dict.fromkeys([*columns, *more])))
