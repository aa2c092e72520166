"""The steps of ``retrain``: studies, evaluations, versions in MLflow's registry, the alias, artifacts."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

import msgspec
from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import deployment, flow_run
from pydantic import BaseModel, ConfigDict, Field

from hpo_core.home import Home
from hpo_core.journal.protocol import Journal
from hpo_core.model.errors import HpoError, SpecError, StudyNotFoundError
from hpo_core.retraining.model_registry import (
    KEY,
    Candidate,
    Decision,
    ModelCard,
    ModelRegistry,
    Repeat,
)
from hpo_core.retraining.promotion_policy import (
    MIN_EXAMPLES,
    TRAINED_AGAIN,
    TUNED_FOR_DRIFT,
    Drift,
    ExampleLosses,
    check_drift,
    example_noise,
    is_good_enough,
    promotion_test,
    tuned_for_worse,
)
from hpo_core.retraining.repeated_studies import (
    fingerprint,
    repeats_spec,
    trials_of_repeats,
    tuning_spec,
)
from hpo_core.security.private_files import LockFile
from hpo_core.spec import StudySpec
from hpo_core.spec.data import DATA_PARAMETER
from hpo_core.spec.refusals import check_retraining
from hpo_core.study import Study
from hpo_core.tracking.mlflow_client import KnownRun
from hpo_core.tracking.run_artifacts import Trained
from hpo_core.training.evaluation import Evaluation, EvaluationRequest, TrainedModel, evaluate_models
from hpo_core.views.failure_reasons import cure_in_python
from hpo_flows.deployed.permissions import Permissions
from hpo_flows.prefect_pages.artifacts import artifact_key
from hpo_flows.prefect_pages.tune_flow import Found, step
from hpo_flows.study_run.session import Session
from hpo_flows.study_run.study_flow import run_study


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
    level: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="Level of the one-sided Welch test of a challenger, over seeds and examples.",
    )
    margin: float = Field(default=0.0, ge=0, description="A gain up to it is not worth a change; unit: the metric's.")
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


class Champion(msgspec.Struct, frozen=True):
    """The champion's card, and its losses on the new data."""

    version: int
    card: ModelCard
    scores: tuple[ExampleLosses, ...]
    losses: tuple[float, ...]
    """Per example of the new data, of the model that serves."""

    @property
    def now(self) -> list[float]:
        """Losses of all repeats on the new data."""
        return [one.loss for one in self.scores]


class NewData(msgspec.Struct, frozen=True):
    """The new data, and the run that deals with them."""

    run: KnownRun
    key: str
    place: str
    content: str
    """Fingerprint."""


class Branch(msgspec.Struct, frozen=True):
    """Decision to tune again or not, with its reason."""

    tunes: bool
    words: str


class Retraining:
    """One run of the flow: trains, tunes, evaluates and decides."""

    def __init__(self, home: Home, model: str, evaluate: str | None, rules: Rules) -> None:
        self.home = home
        self.model = model
        self.rules = rules
        self.journal: Journal = home.read_journal()
        self._asked = evaluate
        uri = home.default_tracking_uri
        self.registry = ModelRegistry(model, uri, f"retrain-{model}", home.artifacts_at(uri))

    def retrain(self, data: str, first_study: str | None) -> dict[str, Any]:
        """Do what is left to do for these data, and return the outcome."""
        if self.registry.champion() is None:
            self._crown_first(first_study)
        new = self.look_at_data(data)
        found: dict[str, Any] = {"model": self.model, "mlflow_run": new.run.run_id}
        found["flow_run"] = str(flow_run.id)
        if new.run.status == "FINISHED":
            champion = self.registry.champion()
            outcome = self._unchanged(new.run)
            return found | {"outcome": outcome, "champion": champion, "promoted": False, "done_before": True}
        with self._failing(new.run):
            decision = self._decide(new)
            version = self.promote(new.run, decision)
            self.report(new.run, decision, version)
        return found | {
            "outcome": decision.outcome(version),
            "champion": self.registry.champion(),
            "promoted": decision.promoted,
            "done_before": False,
            "challenger": version,
            "drift": decision.drift.statistic,
            "drifted": decision.drift.drifted,
            "p_value": decision.verdict.p_value,
            "gain": decision.verdict.gain,
            "branches": [label.removeprefix("challenger, ") for label, _ in decision.rows[2:]],
            "study": decision.challenger.study,
        }

    @step("look at the data")
    def look_at_data(self, data: str) -> Found[NewData]:
        """The run for these data: the one that was begun, or a new one."""
        content = fingerprint(data)
        run = self.registry.begin(content, f"retrain {self.model}", data)
        new = NewData(run, run.tags[KEY], data, content)
        if run.status == "FINISHED":
            return Found(new, self._unchanged(run))
        return Found(new, f"{data}, fingerprint {content[:12]}: retraining {new.key}")

    def _unchanged(self, run: KnownRun) -> str:
        since = f" since {datetime.fromtimestamp(run.ended / 1000, UTC):%Y-%m-%d %H:%M} UTC" if run.ended else ""
        return f"version {self.registry.champion()} stays champion: the data have not changed{since}; nothing was done"

    @contextmanager
    def _failing(self, run: KnownRun) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            try:
                self.registry.fail(run, error)
            except Exception as further:
                get_run_logger().warning(
                    "The run of this retraining stays RUNNING in MLflow (%s).", type(further).__name__
                )
            raise

    def _crown_first(self, name: str | None) -> None:
        """The best trial of a study, trained with several seeds on its own data; there is nothing to compare."""
        if name is None:
            raise SpecError(
                f"Model {self.model!r} has no version with the alias 'champion'. Name the study whose best trial "
                "becomes the first one: study=NAME."
            )
        if self._asked is None:
            raise SpecError("The first champion needs `evaluate`, package.module:function.")
        source = Study.open(name, self.journal, reading=True)
        check_retraining(source.spec)
        if source.best is None:
            raise SpecError(f"Study {name!r} has no finite, feasible result yet; go on with it: hpo resume {name}.")
        trial = source.best.trial
        own = str((source.spec.constants | source.state.trials[trial].params).get(DATA_PARAMETER, ""))
        content = fingerprint(own) if own else ""
        begun = fingerprint(f"first/{name}/{trial}/{self.rules.repeats}/{content}")
        run = self.registry.begin(begun, f"first champion of {self.model}", own)
        with self._failing(run):
            study = self._repeated(name, trial, f"{self.model}-{run.tags[KEY]}-first", own or None)
            seeds = ("first champion", study, self._asked)
            first = self.evaluate_seeds(*seeds, searches=(name,), data=own, content=content)
            self.promote_first(run, first.card, name)

    @step("promote the first champion")
    def promote_first(self, run: KnownRun, card: ModelCard, source: str) -> Found[int]:
        """Register the first version, and give it the alias."""
        self._upload(run, card)
        facts = {"hpo.study": card.study}
        version = self.registry.register(run, facts, f"The best of study {source}; the first champion.")
        self.registry.promote(version)
        self.registry.finish(run)
        words = f"version {version} is the first champion of {self.model}: the best of study {source}"
        return Found(version, words)

    def _decide(self, new: NewData) -> Decision:
        version = self.registry.champion()
        assert version is not None
        champion = self.evaluate_champion(version, new.place)
        drift = self.check_for_drift(champion)
        steps = [TUNED_FOR_DRIFT if drift.drifted else TRAINED_AGAIN]
        challengers = []
        if not drift.drifted:
            challengers.append(self._retrained(new, champion.card, drift))
            compared = self.compare(champion, challengers[0])
            steps.append(compared.words)
        if drift.drifted or compared.tunes:
            challengers.append(self._tuned(new, champion.card, drift if drift.drifted else compared))
        return self.test_challenger(new, champion, drift, challengers=challengers, steps=steps)

    @step("evaluate champion version {version}")
    def evaluate_champion(self, version: int, data: str) -> Found[Champion]:
        """Evaluate the champion's models on the new data."""
        card = self.registry.card(version)
        if self._asked not in (None, card.evaluate):
            raise SpecError(
                f"Version {version} of model {self.model!r} was evaluated with {card.evaluate}; losses that "
                f"{self._asked} finds compare with nothing. Leave `evaluate` empty; or remove the alias 'champion' "
                "and name the study of a first champion for the new function: study=NAME."
            )
        found = self.evaluated(card, data)
        champion = Champion(version, card, scores_of(card, found), tuple(found[card.serving].losses))
        words = f"{_mean(card, champion.now)} on the new data, {_mean(card, card.losses)} on its own"
        return Found(champion, words)

    @step("check for drift")
    def check_for_drift(self, champion: Champion) -> Found[Drift]:
        """Compare the champion's losses per example on the new data with those on its own."""
        drift = check_drift(champion.card.reference, champion.losses, limit=self.rules.drift_limit)
        return Found(drift, f"{drift.words()}; {TUNED_FOR_DRIFT if drift.drifted else TRAINED_AGAIN}")

    @step("compare with the champion")
    def compare(self, champion: Champion, again: Candidate) -> Found[Branch]:
        """Tune if the champion's parameters, trained again, are worse than the champion."""
        level = self.rules.level
        noise = example_noise(champion.scores, again.scores)
        if is_good_enough(champion.now, again.card.losses, noise=noise, level=level):
            words = "trained again they are as good as the champion: no tuning"
            return Found(Branch(False, words), words)
        words = tuned_for_worse(level)
        return Found(Branch(True, words), words)

    @step("test the challenger")
    def test_challenger(
        self, new: NewData, champion: Champion, drift: Drift, *, challengers: list[Candidate], steps: list[str]
    ) -> Found[Decision]:
        """Test the best challenger against the champion, and write the decision to MLflow."""
        best = min(challengers, key=lambda challenger: challenger.mean)
        verdict = promotion_test(
            champion.now,
            best.card.losses,
            noise=example_noise(champion.scores, best.scores),
            margin=self.rules.margin,
            level=self.rules.level,
            challengers=len(challengers),
        )
        if fingerprint(new.place) != new.content:
            raise HpoError(
                f"The data {new.place!r} changed while champion and challengers were compared on them. Nothing was "
                "changed; start again once they are complete."
            )
        rows = [("champion, own data", tuple(champion.card.losses)), ("champion, new data", tuple(champion.now))]
        rows += [(f"challenger, {challenger.branch}", tuple(challenger.card.losses)) for challenger in challengers]
        decision = Decision(
            model=self.model,
            key=new.key,
            champion_version=champion.version,
            promoted=verdict.wins,
            drift=drift,
            verdict=verdict,
            steps=tuple(steps),
            rows=tuple(rows),
            challenger=best.card,
        )
        self._upload(new.run, best.card)
        self.registry.keep_decision(new.run, decision)
        return Found(decision, verdict.words(best.card.metric, best.card.sign))

    def _upload(self, run: KnownRun, card: ModelCard) -> None:
        study = Study.open(card.study, self.journal, reading=True)
        serving = self._models(study, card)[card.serving]
        served = Trained(serving.params, serving.checkpoint, serving.folder, serving.base)
        self.registry.upload(run, card, served, study.spec.build, self.home.import_folders(study.spec))

    def _retrained(self, new: NewData, card: ModelCard, drift: Drift) -> Candidate:
        name = f"{self.model}-{new.key}-again"
        study = self._repeated(card.study, card.repeats[0].trial, name, new.place, after=drift)
        seeds = ("challenger trained again", study, card.evaluate)
        return self.evaluate_seeds(*seeds, searches=card.searches, data=new.place, content=new.content)

    def _tuned(self, new: NewData, card: ModelCard, because: Drift | Branch) -> Candidate:
        name = f"{self.model}-{new.key}-tune"
        source = Study.open(card.searches[0], self.journal, reading=True).spec
        spec = tuning_spec(source, name, data=new.place, studies=card.searches, key=new.content)
        found = self.study_at_end(name, spec, after=because)
        if found.best is None:
            raise HpoError(f"Study {name!r} ended without a finite result; nothing was changed. See hpo show {name}.")
        best = self._repeated(name, found.best.trial, f"{self.model}-{new.key}-best", new.place, after=because)
        searches, seeds = (name, *card.searches)[:5], ("challenger tuned", best, card.evaluate)
        return self.evaluate_seeds(*seeds, searches=searches, data=new.place, content=new.content)

    @step("promote")
    def promote(self, run: KnownRun, decision: Decision) -> Found[int]:
        """Register the challenger, and give it the alias if it has won."""
        facts = {
            KEY: decision.key,
            "hpo.study": decision.challenger.study,
            "hpo.data_fingerprint": decision.challenger.fingerprint,
            "hpo.promoted": str(decision.promoted).lower(),
        }
        version = self.registry.register(run, facts, decision.markdown())
        if (champion := self.registry.champion()) not in (decision.champion_version, version):
            raise HpoError(
                f"Model {self.model!r}: the challenger was tested against version {decision.champion_version}, and the "
                f"champion is version {champion} now. The alias was left alone; start again."
            )
        if decision.promoted:
            self.registry.promote(version)
        self.registry.finish(run)
        return Found(version, decision.outcome(version))

    @step("report")
    def report(self, run: KnownRun, decision: Decision, version: int) -> Found[None]:
        """Show the decision in Prefect. It stands in MLflow by now: an API that does not answer changes nothing."""
        link = f"MLflow: `{self.registry.url(run)}`, version {version} of `{self.model}`."
        key = artifact_key(self.model, "decision")
        try:
            create_markdown_artifact(f"{decision.markdown()}\n\n{link}", key=key, description=decision.headline())
        except Exception as error:
            return Found(None, f"{link} It is not among Prefect's artifacts ({type(error).__name__}).")
        return Found(None, f"artifact {key}. {link}")

    def _repeated(self, source: str, trial: int, name: str, data: str | None, *, after: Any = None) -> Study:
        changes = {} if data is None else {DATA_PARAMETER: data}
        entries = list(self.journal.entries(source))
        spec = repeats_spec(entries, name, trial=trial, repeats=self.rules.repeats, changes=changes)
        return self.study_at_end(name, spec, after=after)

    def study_at_end(self, name: str, spec: StudySpec, *, after: Any = None) -> Study:
        """The study, run to its end in a subflow; one that was interrupted goes on, an ended one is only read.

        Args:
            after: result of the step that the study follows from.
        """
        try:
            known: Study | None = Study.open(name, self.journal, reading=True)
        except StudyNotFoundError:
            known = None
        if known is None or not _has_ended(known):
            if deployment.id is not None:
                Permissions.of_environment().check(spec)
            with closing(Session(self.home, name, spec=None if known else spec)) as session:
                session.start_cluster()
                session.cure = cure_in_python
                run_study(session, after=after)
            known = Study.open(name, self.journal, reading=True)
        if not _has_ended(known):
            reason = known.state.halted.reason if known.state.halted is not None else "it was interrupted"
            raise HpoError(f"Study {name!r} did not reach its end ({reason}); nothing was changed. Start again.")
        return known

    @step("evaluate the {who}")
    def evaluate_seeds(
        self, who: str, study: Study, evaluate: str, *, searches: tuple[str, ...], data: str, content: str
    ) -> Found[Candidate]:
        """Evaluate all seeds of a challenger, or of the first champion, on the data that they were trained on."""
        card = ModelCard(
            study.spec.metric.name,
            study.spec.metric.mode,
            study.name,
            searches=searches,
            data=data,
            fingerprint=content,
            evaluate=evaluate,
            repeats=tuple(map(Repeat, trials_of_repeats(study.spec, self.rules.repeats))),
            reference=(),
        )
        found = self._candidate(who.removeprefix("challenger "), card)
        words = f"{_mean(found.card, found.card.losses)} on {data or 'its own data'}, {len(found.scores)} seeds"
        return Found(found, words)

    def _models(self, study: Study, card: ModelCard) -> list[TrainedModel]:
        name, spec = study.name, study.spec
        folder = str(self.home.study_folder(name))
        models = []
        for number in (repeat.trial for repeat in card.repeats):
            trial = study.state.trials[number]
            checkpoint = trial.checkpoint()
            finite = bool(trial.results) and trial.results[-1].loss is not None and not trial.infeasible
            if not finite or checkpoint is None or checkpoint.resource != trial.resource:
                raise HpoError(
                    f"Study {name!r}: repeat {number} has no finite, feasible result with a checkpoint "
                    f"({trial.status}); nothing was changed. `hpo show {name} --trial {number}` says why; training "
                    "functions must track their model (trial.track). Started again, all is trained anew."
                )
            models.append(
                TrainedModel(
                    number,
                    spec.constants | trial.params,
                    spec.training_seed(number),
                    folder=folder,
                    checkpoint=checkpoint,
                    base=spec.checkpoint_base,
                )
            )
        return models

    def _candidate(self, branch: str, card: ModelCard) -> Candidate:
        found = self.evaluated(card, None)
        losses = [result.metrics[card.metric] * card.sign for result in found]
        reference = found[losses.index(min(losses))].losses
        if len(reference) < MIN_EXAMPLES:
            raise SpecError(
                f"{card.evaluate} returned {len(reference)} losses per example on {card.data or 'its own data'!r}; "
                f"the drift check of the next data needs {MIN_EXAMPLES} at least. Return one loss per example; then "
                "start again."
            )
        filled = [msgspec.structs.replace(repeat, loss=loss) for repeat, loss in zip(card.repeats, losses, strict=True)]
        card = msgspec.structs.replace(card, repeats=tuple(filled), reference=reference)
        return Candidate(branch, card, scores_of(card, found))

    def evaluated(self, card: ModelCard, data: str | None) -> list[Evaluation]:
        """A card's models, on their own data or on other data."""
        study = Study.open(card.study, self.journal, reading=True)
        spec = study.spec
        check_function(card.evaluate, spec.pythonpath)
        if deployment.id is not None:
            Permissions.of_environment().check(spec)
        models = tuple(self._models(study, card))
        if data is not None:
            models = tuple(
                msgspec.structs.replace(model, params=model.params | {DATA_PARAMETER: data}) for model in models
            )
        request = EvaluationRequest(card.evaluate, tuple(self.home.import_folders(spec)), card.metric, models)
        return evaluate_models(request, timeout=self.rules.timeout)


def scores_of(card: ModelCard, found: list[Evaluation]) -> tuple[ExampleLosses, ...]:
    return tuple(
        ExampleLosses(one.metrics[card.metric] * card.sign, one.mean, examples=one.examples, losses=one.in_order)
        for one in found
    )


def _mean(card: ModelCard, losses: Sequence[float]) -> str:
    return f"{card.metric} {fmean(losses) * card.sign:.4g}"


def _has_ended(study: Study) -> bool:
    halted = study.state.halted
    return study.status == "finished" or (halted is not None and bool(halted.rule))


class RetrainingBusyError(Exception):
    """Another run retrains the model; its text says which."""


@contextmanager
def only_retraining(home: Home, model: str, who: str) -> Iterator[None]:
    """Hold the lock of a model.

    The kernel gives it back when this process ends, also after ``kill -9``: nothing has to be cleaned up.

    Args:
        who: what others are told who ask meanwhile.

    Raises:
        RetrainingBusyError: another process holds it, or this one.
    """
    place = home.make_folder("retraining") / f"{model}.lock"
    with closing(LockFile(place, f"the retraining of model {model!r}")) as lock:
        if not lock.take(fcntl.LOCK_EX):
            raise RetrainingBusyError(lock.read() or "another run")
        lock.write(who)
        try:
            yield
        finally:
            lock.write("")
            lock.give_back()
