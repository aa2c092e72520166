"""The steps of ``retrain``: studies, evaluations, versions in MLflow's registry, the alias, artifacts.

Every step can be repeated: studies are named after the data's fingerprint and gone on with, the decision is uploaded
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
from statistics import fmean
from typing import Any

import msgspec
from prefect.artifacts import create_markdown_artifact
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
    Drift,
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
from hpo_flows.steps import logger, step
from hpo_flows.study_run.session import Session
from hpo_flows.study_run.study_flow import is_in_flow_run, run_study


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


class Champion(msgspec.Struct, frozen=True):
    """The champion as a retraining sees it: its card, and what its models come to on the new data."""

    version: int
    card: ModelCard
    scores: tuple[ExampleLosses, ...]
    losses: tuple[float, ...]
    """Per example of the new data, of the model that serves."""

    @property
    def now(self) -> list[float]:
        """Losses of all repeats on the new data."""
        return [one.loss for one in self.scores]


class Begun(msgspec.Struct, frozen=True):
    """The work for some data, found where it was begun."""

    run: KnownRun
    key: str
    data: str
    """Where they lay when it was begun: its studies name that."""
    content: str
    """Their fingerprint."""
    decision: Decision | None
    """None as long as nothing was decided."""

    @property
    def done(self) -> Decision | None:
        """The decision, where it was carried out and nothing is left to do."""
        return self.decision if self.run.status == "FINISHED" else None


class Branch(msgspec.Struct, frozen=True):
    """Whether the parameters are tuned again, and why."""

    tunes: bool
    words: str


class Retraining:
    """One run of the flow: trains, tunes, evaluates and decides; each study is gone on with where it was begun."""

    def __init__(self, home: Home, model: str, evaluate: str | None, rules: Rules, attempt: int) -> None:
        self.home = home
        self.model = model
        self.rules = rules
        self.attempt = attempt
        self.log = logger()
        self.journal: Journal = home.read_journal()
        self.evaluate = evaluate or ""
        """The evaluation function; empty until the champion has said its own."""
        self._asked = evaluate
        uri = home.default_tracking_uri
        self.registry = ModelRegistry(model, uri, f"retrain-{model}", home.artifacts_at(uri))

    def retrain(self, data: str, first_study: str | None) -> dict[str, Any]:
        """Do, step by step, what is left to do for these data; returns what came of it."""
        if self.registry.champion() is None:
            self._crown_first(first_study)
        begun = self.look_at_data(data)
        if (done := begun.done) is not None:
            version = int(begun.run.tags["hpo.version"])
            found = self._result(begun.run, done, version, outcome=self._unchanged(begun.run))
            return found | {"done_before": True, "promoted": False}
        with self._failing(begun.run):
            decision = begun.decision or self._decide(begun)
            version = self.promote(begun.run, decision)
            self.report(begun.run, decision, version)
        return self._result(begun.run, decision, version, outcome=decision.outcome(version))

    @step("look at the data")
    def look_at_data(self, data: str) -> tuple[Begun, str]:
        """The work for these data, begun where it was not."""
        run, key, data, content = self._begun(data)
        begun = Begun(run, key, data, content, self.registry.decision_of(run))
        if begun.done is not None:
            return begun, f"{self._unchanged(run)}. Then: {begun.done.headline()}"
        known = "what was decided on them is carried out" if begun.decision else f"retraining {key}"
        return begun, f"{data}, fingerprint {content[:12]}: {known}"

    def _unchanged(self, run: KnownRun) -> str:
        since = f" since {datetime.fromtimestamp(run.ended / 1000, UTC):%Y-%m-%d %H:%M} UTC" if run.ended else ""
        return f"version {self.registry.champion()} stays champion: the data have not changed{since}; nothing was done"

    def _begun(self, data: str) -> tuple[KnownRun, str, str, str]:
        """The run for these data, its key, where they lay when it was begun, their content."""
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
            study = self.study_at_end(repeats, spec)
            first = self.evaluate_first(study, (self.search_behind(name),), data=own, content=content)
            self.promote_first(run, first.card, name)

    @step("promote the first champion")
    def promote_first(self, run: KnownRun, card: ModelCard, source: str) -> tuple[int, str]:
        """Register the first version, and give it the alias."""
        self._upload(run, card)
        facts = {"hpo.study": card.study}
        version = self.registry.register(run, facts, f"The best of study {source}; the first champion.")
        self.registry.promote(version)
        self.registry.finish(run, version)
        return version, f"version {version} is the first champion of {self.model}: the best of study {source}"

    # The decision.

    def _decide(self, begun: Begun) -> Decision:
        version = self.registry.champion()
        assert version is not None
        champion = self.evaluate_champion(version, begun.data)
        drift = self.check_for_drift(champion)
        steps = [TUNED_FOR_DRIFT if drift.drifted else TRAINED_AGAIN]
        challengers = []
        if not drift.drifted:
            challengers.append(self._retrained(begun, champion.card, drift))
            compared = self.compare(champion, challengers[0])
            steps.append(compared.words)
        if drift.drifted or compared.tunes:
            challengers.append(self._tuned(begun, champion.card, drift if drift.drifted else compared))
        return self.test_challenger(begun, champion, drift, challengers=challengers, steps=steps)

    @step("evaluate champion version {version}")
    def evaluate_champion(self, version: int, data: str) -> tuple[Champion, str]:
        """Evaluate the champion's models on the new data."""
        with tempfile.TemporaryDirectory(prefix="hpo-champion-") as folder:
            card = self._seen_by(self.registry.download(version, Path(folder)), version, Path(folder))
            found = self.evaluated(card, Path(folder), data)
        champion = Champion(version, card, scores_of(card, found), tuple(found[card.serving].losses))
        return champion, f"{_mean(card, champion.now)} on the new data, {_mean(card, card.losses)} on its own"

    @step("check for drift")
    def check_for_drift(self, champion: Champion) -> tuple[Drift, str]:
        """Compare the champion's losses per example on the new data with those on its own."""
        rules = self.rules
        drift = check_drift(champion.card.reference, champion.losses, limit=rules.drift_limit, level=rules.drift_level)
        return drift, f"{drift.words()}; {TUNED_FOR_DRIFT if drift.drifted else TRAINED_AGAIN}"

    @step("compare with the champion")
    def compare(self, champion: Champion, again: Candidate) -> tuple[Branch, str]:
        """Whether the champion's parameters, trained again, are as good as the champion; else they are tuned."""
        level = self.rules.level
        noise = example_noise(champion.scores, again.scores)
        if is_good_enough(champion.now, again.card.losses, noise=noise, level=level):
            words = "trained again they are as good as the champion: no tuning"
            return Branch(False, words), words
        return Branch(True, tuned_for_worse(level)), tuned_for_worse(level)

    @step("test the challenger")
    def test_challenger(
        self, begun: Begun, champion: Champion, drift: Drift, *, challengers: list[Candidate], steps: list[str]
    ) -> tuple[Decision, str]:
        """Test the best challenger against the champion, and store what that decides."""
        best = min(challengers, key=lambda challenger: challenger.mean)
        verdict = promotion_test(
            champion.now,
            best.card.losses,
            noise=example_noise(champion.scores, best.scores),
            margin=self.rules.margin,
            level=self.rules.level,
            challengers=len(challengers),
        )
        if fingerprint(begun.data) != begun.content:
            self.registry.spoil(begun.run)
            raise HpoError(
                f"The data {begun.data!r} changed while champion and challengers were compared on them. Nothing was "
                "changed; start again once they are complete."
            )
        if self.registry.champion() != champion.version:
            raise HpoError(
                f"Model {self.model!r}: the champion was version {champion.version} when this began and is another "
                "one now. Nothing was changed; start again."
            )
        rows = [("champion, own data", tuple(champion.card.losses)), ("champion, new data", tuple(champion.now))]
        rows += [(f"challenger, {challenger.branch}", tuple(challenger.card.losses)) for challenger in challengers]
        decision = Decision(
            model=self.model,
            key=begun.key,
            champion_version=champion.version,
            promoted=verdict.wins,
            drift=drift,
            verdict=verdict,
            steps=tuple(steps),
            rows=tuple(rows),
            challenger=best.card,
        )
        self._upload(begun.run, best.card)
        self.registry.keep_decision(begun.run, decision, decision_picture(decision))
        return decision, verdict.words(best.card.metric, best.card.sign)

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
        return self.with_losses(card, self.evaluated(card, folder, None))

    def _retrained(self, begun: Begun, card: ModelCard, drift: Drift) -> Candidate:
        name = f"{self.model}-{begun.key}-again"
        spec = self.repeats_of(card.study, card.repeats[0].trial, name, begun.data)
        study = self.study_at_end(name, spec, after=drift)
        return self.evaluate_challenger(
            "trained again", study, card.searches, data=begun.data, content=begun.content, after=drift
        )

    def _tuned(self, begun: Begun, card: ModelCard, because: Drift | Branch) -> Candidate:
        name = f"{self.model}-{begun.key}-tune"
        source = Study.open(card.searches[0], self.journal, reading=True).spec
        decay, first = self.rules.decay, self.rules.first
        spec = tuning_spec(
            source, name, data=begun.data, studies=card.searches, decay=decay, first=first, key=begun.key
        )
        found = self.study_at_end(name, spec, after=because)
        if found.best is None:
            raise HpoError(f"Study {name!r} ended without a finite result; nothing was changed. See hpo show {name}.")
        repeats = f"{self.model}-{begun.key}-best"
        best = self.study_at_end(repeats, self.repeats_of(name, found.best.trial, repeats, begun.data), after=because)
        searches = (name, *card.searches)[:5]
        return self.evaluate_challenger("tuned", best, searches, data=begun.data, content=begun.content, after=because)

    # The effects.

    @step("promote")
    def promote(self, run: KnownRun, decision: Decision) -> tuple[int, str]:
        """Register the challenger, and give it the alias if it has won."""
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
        return version, decision.outcome(version)

    @step("report")
    def report(self, run: KnownRun, decision: Decision, version: int) -> tuple[None, str]:
        """Show the decision in Prefect. It stands in MLflow by now: an API that does not answer changes nothing."""
        link = f"MLflow: `{self.registry.url(run)}`, version {version} of `{self.model}`."
        svg = base64.b64encode(decision_picture(decision).encode()).decode()
        image = f"data:image/svg+xml;base64,{svg}"
        words = f"{decision.markdown()}\n\n![what was compared]({image})\n\n{link}"
        key = artifact_key(self.model, "decision")
        if not is_in_flow_run():
            return None, link
        try:
            create_markdown_artifact(words, key=key, description=decision.headline())
        except Exception as error:
            return None, f"{link} It is not among Prefect's artifacts ({type(error).__name__})."
        return None, f"artifact {key}. {link}"

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
            "flow_run": str(flow_run.id) if is_in_flow_run() else None,
        }

    # Challengers: configurations trained with several seeds, and evaluated in a process.

    def repeats_of(self, source: str, trial: int, name: str, data: str | None) -> StudySpec:
        changes = {} if data is None else {DATA: data}
        entries = list(self.journal.entries(source))
        return repeats_spec(entries, name, trial=trial, repeats=self.rules.repeats, changes=changes)

    def study_at_end(self, name: str, spec: StudySpec, *, after: Any = None) -> Study:
        """The study, run to its end in a subflow; one that was begun goes on, a finished one is only read.

        Args:
            after: what a step found that the study follows from.
        """
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
                if is_in_flow_run():
                    run_study(session, action, cure=cure_in_python, after=after)
                else:
                    session.run()
            known = Study.open(name, self.journal, reading=True)
        if not _has_ended(known):
            reason = known.state.halted.reason if known.state.halted is not None else "it was interrupted"
            raise HpoError(
                f"Study {name!r} did not reach its end ({reason}); nothing was changed. Mend that and start the "
                "retraining again: it goes on from here."
            )
        return known

    @step("evaluate the challenger {branch}")
    def evaluate_challenger(
        self, branch: str, study: Study, searches: tuple[str, ...], *, data: str, content: str, after: Any
    ) -> tuple[Candidate, str]:
        """Evaluate all seeds of a challenger on the new data."""
        found = self._trained(branch, study, searches, data=data, content=content)
        return found, f"{_mean(found.card, found.card.losses)} on the new data, {len(found.scores)} seeds"

    @step("evaluate the first champion")
    def evaluate_first(
        self, study: Study, searches: tuple[str, ...], *, data: str, content: str
    ) -> tuple[Candidate, str]:
        """Evaluate all seeds of the first champion on its own data."""
        found = self._trained("first", study, searches, data=data, content=content)
        return found, f"{_mean(found.card, found.card.losses)} on its own data, {len(found.scores)} seeds"

    def _trained(self, branch: str, study: Study, searches: tuple[str, ...], *, data: str, content: str) -> Candidate:
        """A configuration after all of its repeats were trained, evaluated on ``data``."""
        name, spec = study.name, study.spec
        repeats = []
        for number in trials_of_repeats(spec, self.rules.repeats):
            trial = study.state.trials[number]
            checkpoint = trial.checkpoint()
            finite = bool(trial.results) and trial.results[-1].loss is not None and not trial.infeasible
            if not finite or checkpoint is None or checkpoint.resource != trial.resource:
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
        found = self.evaluated(card, self.home.study_folder(name), None)
        return Candidate(branch, self.with_losses(card, found), scores_of(card, found))

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

    def evaluated(self, card: ModelCard, folder: Path, data: str | None) -> list[Evaluation]:
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
        return evaluate_models(request, timeout=self.rules.timeout)

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


def _mean(card: ModelCard, losses: Sequence[float]) -> str:
    """``val_loss 0.2311``: the mean over the seeds, in the user's metric."""
    return f"{card.metric} {fmean(losses) * card.sign:.4g}"


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
