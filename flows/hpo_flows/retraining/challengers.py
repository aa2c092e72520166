"""Challengers: configurations trained with several seeds by studies, and evaluated in a process."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import deployment
from pydantic import BaseModel, ConfigDict, Field

from hpo_core.home import Home
from hpo_core.journal.protocol import Journal
from hpo_core.model.errors import HpoError, SpecError, StudyNotFoundError
from hpo_core.retraining.model_registry import ModelCard, Repeat, index_of_smallest
from hpo_core.retraining.promotion_policy import MIN_EXAMPLES, ExampleLosses
from hpo_core.retraining.repeated_studies import DATA, repeats_spec, trials_of_repeats
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.training.evaluation import Evaluation, EvaluationRequest, TrainedModel, evaluate_models
from hpo_flows.deployed.flow_run import drive
from hpo_flows.deployed.permissions import Permissions
from hpo_flows.prefect_api.api_watch import PATIENT_SECONDS
from hpo_flows.prefect_pages.study_pages import run_in_flow
from hpo_flows.study_run.session import Session


class Rules(BaseModel):
    """When to tune again, and what a challenger must show."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repeats: int = Field(default=5, ge=2, le=50, description="Seeds that each configuration is trained with.")
    drift_limit: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="Kolmogorov-Smirnov distance of the champion's losses per example, from "
        "which on parameters are tuned again instead of trained again.",
    )
    drift_level: float = Field(default=0.01, gt=0, lt=1, description="Level of significance of the drift check.")
    level: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="Level of the one-sided Welch test of a challenger, over seeds and examples.",
    )
    margin: float = Field(default=0.0, ge=0, description="A gain up to it is not worth a change; unit: the metric's.")
    decay: float = Field(
        default=0.5, ge=0, le=1, description="Share of the newest search's results shown to a new one."
    )
    first: int = Field(default=3, ge=0, le=1000, description="Incumbents of earlier searches that are tried first.")
    timeout: float = Field(default=3600.0, gt=0, description="Seconds that one evaluation may take.")


def check_function(evaluate: str, folders: Sequence[str] | None = None) -> None:
    """In a run of a deployment: only what the worker allows is imported, also where a registered model names it.

    Args:
        folders: that it will be imported from; None: not known yet.
    """
    if deployment.id is not None:
        permissions = Permissions.of_environment()
        places = [str(folder) for folder in permissions.import_folders] if folders is None else folders
        permissions.check_function("evaluate", evaluate, places)


@task(name="evaluate", task_run_name="evaluate-{label}", cache_policy=NO_CACHE, persist_result=False)
def evaluate_on(label: str, request: EvaluationRequest, timeout: float) -> list[Evaluation]:
    """Evaluate models in a process of its own."""
    return evaluate_models(request, timeout=timeout)


class Challengers:
    """Trains, tunes and evaluates for one run of ``retrain``; each study is gone on with where it was begun.

    Args:
        evaluate: The evaluation function; empty until the champion has said its own.
    """

    def __init__(self, home: Home, journal: Journal, rules: Rules, evaluate: str) -> None:
        self.home = home
        self.journal = journal
        self.rules = rules
        self.evaluate = evaluate

    def repeats_of(self, source: str, trial: int, name: str, data: str | None) -> StudySpec:
        changes = {} if data is None else {DATA: data}
        entries = list(self.journal.entries(source))
        return repeats_spec(entries, name, trial=trial, repeats=self.rules.repeats, changes=changes)

    def study_at_end(self, name: str, spec: StudySpec) -> Study:
        """The study, run to its end; one that was begun goes on, a finished one is only read."""
        try:
            self.journal.info(name)
            known = Study.open(name, self.journal, reading=True)
        except StudyNotFoundError:
            known = None
        if known is not None and (known.spec.search, known.spec.seed) != (spec.search, spec.seed):
            raise HpoError(
                f"Study {name!r} is in the journal and is not the one that this retraining would make there. Was "
                "the search before it extended or its model renamed meanwhile? Use another attempt=N, or another model "
                "name."
            )
        if known is None or not _has_ended(known):
            if deployment.id is not None:
                Permissions.of_environment().check(spec)
            _drive(Session(self.home, name, spec=None if known else spec), "resume" if known else "tune")
            known = Study.open(name, self.journal, reading=True)
        if not _has_ended(known):
            reason = known.state.halted.reason if known.state.halted is not None else "it was interrupted"
            raise HpoError(
                f"Study {name!r} did not reach its end ({reason}); nothing was changed. Mend that and start the "
                "retraining again: it goes on from here."
            )
        return known

    def trained(
        self, name: str, spec: StudySpec, searches: tuple[str, ...], *, data: str, content: str
    ) -> tuple[ModelCard, tuple[ExampleLosses, ...]]:
        """The card of a configuration after all of its repeats were trained and evaluated on ``data``."""
        study = self.study_at_end(name, spec)
        spec = study.spec
        repeats = []
        for number in trials_of_repeats(spec, self.rules.repeats):
            trial = study.state.trials[number]
            checkpoint = trial.checkpoint()
            finite = bool(trial.results) and trial.results[-1].loss is not None and not trial.infeasible
            if not finite or checkpoint is None or checkpoint.resource != trial.searched:
                raise HpoError(
                    f"Study {name!r}: repeat {number} has no finite, feasible result with a checkpoint "
                    f"({trial.status}); nothing was changed. `hpo show {name} --trial {number}` says why; training "
                    "functions must track their model (trial.track), and with another attempt=N all is trained anew, "
                    "with other seeds."
                )
            repeats.append(Repeat(number, spec.training_seed(number), spec.constants | trial.params, checkpoint, 0.0))
        card = ModelCard(
            spec.metric.name,
            spec.metric.mode,
            name,
            searches=searches,
            data=data,
            fingerprint=content,
            evaluate=self.evaluate,
            repeats=tuple(repeats),
            reference=(),
        )
        found = self.evaluated(name, card, self.home.study_folder(name), None)
        return self.with_losses(card, found), scores_of(card, found)

    def with_losses(self, card: ModelCard, found: list[Evaluation]) -> ModelCard:
        """The card with what an evaluation on its own data came to."""
        losses = [result.metrics[card.metric] * card.sign for result in found]
        reference = found[index_of_smallest(losses)].losses
        if len(reference) < MIN_EXAMPLES:
            raise SpecError(
                f"{self.evaluate} returned {len(reference)} losses per example on {card.data or 'its own data'!r}; "
                f"the drift check of the next data needs {MIN_EXAMPLES} at least. Return one loss per example; then "
                "start again, nothing is trained twice."
            )
        filled = [msgspec.structs.replace(repeat, loss=loss) for repeat, loss in zip(card.repeats, losses, strict=True)]
        return msgspec.structs.replace(card, repeats=tuple(filled), evaluate=self.evaluate, reference=reference)

    def evaluated(self, label: str, card: ModelCard, folder: Path, data: str | None) -> list[Evaluation]:
        """A card's models, on their own data or on other data."""
        function = self.evaluate
        spec = Study.open(card.study, self.journal, reading=True).spec
        check_function(function, spec.pythonpath)
        if deployment.id is not None:
            Permissions.of_environment().check(spec)
        changes = {} if data is None else {DATA: data}
        trained_here = folder == self.home.study_folder(card.study)
        base = spec.checkpoint_base if trained_here else ""  # else downloaded, and below the folder it was put into
        models = tuple(
            TrainedModel(
                repeat.trial,
                repeat.params | changes,
                repeat.seed,
                folder=str(folder),
                checkpoint=repeat.checkpoint,
                base=base,
            )
            for repeat in card.repeats
        )
        request = EvaluationRequest(function, tuple(self.home.import_folders(spec)), card.metric, models)
        return list(evaluate_on(label, request, self.rules.timeout))

    def search_behind(self, name: str) -> str:
        """A rerun has no search to begin anew; the study whose record it trained along has."""
        search = Study.open(name, self.journal, at=0).spec.search
        while (record := search.record()) is not None:
            try:
                found = Study.open(record.source, self.journal, at=0).spec
            except StudyNotFoundError:
                break
            name, search = found.study, found.search
        return name


def scores_of(card: ModelCard, found: list[Evaluation]) -> tuple[ExampleLosses, ...]:
    """What an evaluation of a card's models came to, for the tests."""
    return tuple(
        ExampleLosses(one.metrics[card.metric] * card.sign, one.mean, examples=one.examples, losses=one.in_order)
        for one in found
    )


def _has_ended(study: Study) -> bool:
    """Nothing is left to do: its search is done, or a stop rule of its own has ended it."""
    halted = study.state.halted
    return study.status == "finished" or (halted is not None and bool(halted.rule))


def _drive(session: Session, action: str) -> None:
    try:
        run_in_flow(session.spec, lambda: drive(session, action, patience=PATIENT_SECONDS)[1].status)
        if warning := session.trackers.finish():
            get_run_logger().warning(warning)
    finally:
        session.close()
