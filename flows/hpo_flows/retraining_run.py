"""What ``retrain`` does to the world: studies, evaluations, versions in MLflow's registry, the alias, artifacts.

Every effect can be repeated: studies are named after the data's fingerprint and gone on with, the decision is uploaded
before it is carried out, and what was carried out is found again by its tags.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.runtime import deployment, flow_run
from pydantic import BaseModel, ConfigDict, Field

from hpo_core.home import Home
from hpo_core.journal.protocol import Journal
from hpo_core.model.errors import HpoError, SpecError, StudyNotFoundError
from hpo_core.report.pictures import decision_picture
from hpo_core.retraining.model_registry import DATA as DATA_TAG
from hpo_core.retraining.model_registry import (
    SPOILED,
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
    ExampleLosses,
    check_drift,
    example_noise,
    is_good_enough,
    promotion_test,
    tuned_for_worse,
)
from hpo_core.retraining.repeated_studies import (
    DATA,
    fingerprint,
    repeats_spec,
    trials_of_repeats,
    tuning_spec,
)
from hpo_core.security.private_files import LockFile
from hpo_core.spec import StudySpec
from hpo_core.spec.refusals import check_retraining
from hpo_core.study import Study
from hpo_core.tracking.mlflow_client import KnownRun
from hpo_core.training.evaluation import Evaluation, EvaluationRequest, TrainedModel, evaluate_models
from hpo_core.views.failure_reasons import cure_in_python
from hpo_flows.deployed.permissions import Permissions
from hpo_flows.prefect_pages.artifacts import artifact_key
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


class Retraining:
    """One run of the flow: trains, tunes, evaluates and decides; each study is gone on with where it was begun."""

    def __init__(self, home: Home, model: str, evaluate: str | None, rules: Rules, attempt: int) -> None:
        self.home = home
        self.model = model
        self.rules = rules
        self.attempt = attempt
        self.log = get_run_logger()
        self.journal: Journal = home.read_journal()
        self.evaluate = evaluate or ""
        """The evaluation function; empty until the champion has said its own."""
        self._asked = evaluate
        uri = home.default_tracking_uri
        self.registry = ModelRegistry(model, uri, f"retrain-{model}", home.artifacts_at(uri))

    def retrain(self, data: str, first_study: str | None) -> dict[str, Any]:
        if self.registry.champion() is None:
            self._crown_first(first_study)
        run, key, data, content = self._begun(data)
        decision = self.registry.decision_of(run)
        if run.status == "FINISHED" and decision is not None:
            return self._nothing_new(run, decision)
        with self._failing(run):
            if decision is None:
                decision = self._decide(run, data, content=content, key=key)
            return self._carry_out(run, decision)

    def _begun(self, data: str) -> tuple[KnownRun, str, str, str]:
        """The run for these data, its key, where they lay when it was begun (its studies name that), their content."""
        content = fingerprint(data)
        for spoiled in itertools.count():
            key = self._key(content, spoiled)
            run = self.registry.run_of(key)
            if run is None:
                return self.registry.begin(key, f"retrain {self.model} {key}", data), key, data, content
            if run.tags.get(SPOILED) == "true":
                continue
            then = run.tags.get(DATA_TAG, data)
            if run.status == "FINISHED" or run.tags.get("hpo.decided") == "true":
                return run, key, then, content
            if then == data or self._is_still(then, content):
                return self.registry.begin(key, "", then), key, then, content
            self.log.info("%s is gone or changed: what was begun with it is left, and begun anew with %s", then, data)
            self.registry.spoil(run)
        raise AssertionError("unreachable")

    def _is_still(self, data: str, content: str) -> bool:
        try:
            if deployment.id is not None:
                data = Permissions.of_environment().data_of(data)
            return fingerprint(data) == content
        except HpoError:
            return False

    def _key(self, content: str, spoiled: int = 0) -> str:
        parts = [self.model, content, str(self.attempt)] + ([str(spoiled)] if spoiled else [])
        return hashlib.sha256("/".join(parts).encode()).hexdigest()[:10]

    @contextmanager
    def _failing(self, run: KnownRun) -> Iterator[None]:
        """What ends without a result shows as failed in MLflow, too."""
        try:
            yield
        except BaseException as error:
            try:
                self.registry.fail(run, error)
            except Exception as further:
                self.log.warning("The run of this retraining stays RUNNING in MLflow (%s).", type(further).__name__)
            raise

    # The first champion.

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
        own = str((source.spec.constants | source.state.trials[trial].params).get(DATA, ""))
        content = fingerprint(own) if own else ""
        key = self._key(f"first/{name}/{trial}/{self.rules.repeats}/{content}")
        repeats = f"{self.model}-{key}-first"
        spec = self.repeats_of(name, trial, repeats, own or None)
        run = self.registry.begin(key, f"first champion of {self.model}", own)
        with self._failing(run):
            card, _ = self.trained(repeats, spec, (self.search_behind(name),), data=own, content=content)
            self._upload(run, card)
            version = self.registry.register(
                run, {"hpo.study": repeats}, f"The best of study {name}; the first champion."
            )
            self.registry.promote(version)
            self.registry.finish(run, version)
        self.log.info("version %d is the first champion of %s: the best trial of study %s", version, self.model, name)

    # The decision.

    def _decide(self, run: KnownRun, data: str, *, content: str, key: str) -> Decision:
        version = self.registry.champion()
        assert version is not None
        with tempfile.TemporaryDirectory(prefix="hpo-champion-") as folder:
            card = self._seen_by(self.registry.download(version, Path(folder)), version, Path(folder))
            found = self.evaluated(f"champion-version-{version}", card, Path(folder), data)
        seen = scores_of(card, found)
        now = [one.loss for one in seen]
        rules = self.rules
        drift = check_drift(
            card.reference, found[card.serving].losses, limit=rules.drift_limit, level=rules.drift_level
        )
        steps = [TUNED_FOR_DRIFT if drift.drifted else TRAINED_AGAIN]
        tunes, challengers = drift.drifted, []
        self.log.info("%s; %s", drift.words(), steps[0])
        if not tunes:
            again = self._retrained(card, data, content, key)
            challengers.append(again)
            noise = example_noise(seen, again.scores)
            tunes = not is_good_enough(now, again.card.losses, noise=noise, level=rules.level)
            steps.append(tuned_for_worse(rules.level) if tunes else "trained again they are as good as the champion: "
                         "no tuning")  # fmt: skip
            self.log.info(steps[-1])
        if tunes:
            challengers.append(self._tuned(card, data, content, key))
        best = min(challengers, key=lambda challenger: challenger.mean)
        verdict = promotion_test(
            now,
            best.card.losses,
            noise=example_noise(seen, best.scores),
            margin=rules.margin,
            level=rules.level,
            challengers=len(challengers),
        )
        if fingerprint(data) != content:
            self.registry.spoil(run)
            raise HpoError(
                f"The data {data!r} changed while champion and challengers were compared on them. Nothing was changed; "
                "start again once they are complete."
            )
        if self.registry.champion() != version:
            raise HpoError(
                f"Model {self.model!r}: the champion was version {version} when this began and is another one now. "
                "Nothing was changed; start again."
            )
        rows = [("champion, own data", tuple(card.losses)), ("champion, new data", tuple(now))]
        rows += [(f"challenger, {challenger.branch}", tuple(challenger.card.losses)) for challenger in challengers]
        decision = Decision(
            model=self.model,
            key=key,
            champion_version=version,
            promoted=verdict.wins,
            drift=drift,
            verdict=verdict,
            steps=tuple(steps),
            rows=tuple(rows),
            challenger=best.card,
        )
        self._upload(run, best.card)
        self.registry.keep_decision(run, decision, decision_picture(decision))
        return decision

    def _upload(self, run: KnownRun, card: ModelCard) -> None:
        spec = Study.current_spec(card.study, self.journal)
        self.registry.upload(run, card, self.home.study_folder(card.study), spec, self.home.import_folders(spec))

    def _seen_by(self, card: ModelCard, version: int, folder: Path) -> ModelCard:
        """The card as the evaluation function of this run sees it: losses of another one compare with nothing."""
        if self._asked in (None, card.evaluate) and len(card.reference) >= MIN_EXAMPLES:
            self.evaluate = card.evaluate
            return card
        if card.data and not self._is_still(card.data, card.fingerprint):
            raise HpoError(
                f"Version {version} of model {self.model!r} was evaluated with {card.evaluate}, and its own data "
                f"{card.data!r}, on which {self._asked or 'it'} would have to be run again, are gone or changed. "
                f"Leave `evaluate` empty, or put them back."
            )
        self.evaluate = self._asked or card.evaluate
        return self.with_losses(card, self.evaluated(f"champion-version-{version}-own-data", card, folder, None))

    def _retrained(self, card: ModelCard, data: str, content: str, key: str) -> Candidate:
        name = f"{self.model}-{key}-again"
        spec = self.repeats_of(card.study, card.repeats[0].trial, name, data)
        return Candidate("trained again", *self.trained(name, spec, card.searches, data=data, content=content))

    def _tuned(self, card: ModelCard, data: str, content: str, key: str) -> Candidate:
        name = f"{self.model}-{key}-tune"
        source = Study.open(card.searches[0], self.journal, reading=True).spec
        spec = tuning_spec(
            source, name, data=data, studies=card.searches, decay=self.rules.decay, first=self.rules.first, key=key
        )
        found = self.study_at_end(name, spec)
        if found.best is None:
            raise HpoError(f"Study {name!r} ended without a finite result; nothing was changed. See hpo show {name}.")
        repeats = f"{self.model}-{key}-best"
        best = self.repeats_of(name, found.best.trial, repeats, data)
        searches = (name, *card.searches)[:5]
        return Candidate("tuned", *self.trained(repeats, best, searches, data=data, content=content))

    # The effects.

    def _carry_out(self, run: KnownRun, decision: Decision) -> dict[str, Any]:
        facts = {
            "hpo.retraining": decision.key,
            "hpo.study": decision.challenger.study,
            "hpo.data_fingerprint": decision.challenger.fingerprint,
            "hpo.promoted": str(decision.promoted).lower(),
        }
        version = self.registry.register(run, facts, decision.markdown())
        if decision.promoted and self.registry.champion() in (decision.champion_version, version):
            self.registry.promote(version)
        elif decision.promoted:
            raise HpoError(
                f"Model {self.model!r}: the challenger won against version {decision.champion_version}, but the "
                f"champion is version {self.registry.champion()} now. The alias was left alone; use attempt=N for a "
                "test against it."
            )
        self.registry.finish(run, version)
        outcome = decision.outcome(version)
        self.log.info(outcome)
        self._publish(run, decision, version)
        return self._result(run, decision, version, outcome=outcome)

    def _nothing_new(self, run: KnownRun, decision: Decision) -> dict[str, Any]:
        """The data are those of a retraining that is done: nothing is trained, and nothing published again."""
        since = f" since {datetime.fromtimestamp(run.ended / 1000, UTC):%Y-%m-%d %H:%M} UTC" if run.ended else ""
        outcome = (
            f"version {self.registry.champion()} stays champion: the data have not changed{since}; nothing was done"
        )
        self.log.info("%s. Then: %s", outcome, decision.headline())
        return self._result(run, decision, int(run.tags["hpo.version"]), outcome=outcome) | {
            "done_before": True,
            "promoted": False,
        }

    def _publish(self, run: KnownRun, decision: Decision, version: int) -> None:
        """Show the decision in Prefect. It stands in MLflow by now: an API that does not answer changes nothing."""
        link = f"\n\nMLflow: `{self.registry.url(run)}`, version {version} of `{self.model}`."
        svg = base64.b64encode(decision_picture(decision).encode()).decode()
        image = f"data:image/svg+xml;base64,{svg}"
        words = f"{decision.markdown()}\n\n![what was compared]({image}){link}"
        try:
            create_markdown_artifact(words, key=artifact_key(self.model, "decision"), description=decision.headline())
        except Exception as error:
            self.log.warning("The decision is in MLflow, not among Prefect's artifacts (%s).", type(error).__name__)

    def _result(self, run: KnownRun, decision: Decision, version: int, *, outcome: str) -> dict[str, Any]:
        return {
            "model": self.model,
            "outcome": outcome,
            "promoted": decision.promoted,
            "champion": self.registry.champion(),
            "challenger": version,
            "done_before": False,
            "drift": decision.drift.statistic,
            "drifted": decision.drift.drifted,
            "p_value": decision.verdict.p_value,
            "gain": decision.verdict.gain,
            "branches": [label.removeprefix("challenger, ") for label, _ in decision.rows[2:]],
            "study": decision.challenger.study,
            "mlflow_run": run.run_id,
            "flow_run": str(flow_run.id),
        }

    # Challengers: configurations trained with several seeds, and evaluated in a process.

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
            with closing(Session(self.home, name, spec=None if known else spec)) as session:
                action = "resume" if known else "tune"
                session.start_cluster()
                run_study(session, action, cure=cure_in_python)
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
        reference = found[losses.index(min(losses))].losses
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


class RetrainingBusyError(Exception):
    """Another run retrains the model; ``who`` says which."""

    def __init__(self, who: str) -> None:
        super().__init__(who)
        self.who = who


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
