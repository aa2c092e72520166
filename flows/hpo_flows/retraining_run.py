"""The steps of ``retrain``: studies, evaluations, versions in MLflow's registry, the alias, artifacts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

import msgspec
from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import deployment

from hpo_core.home import Home
from hpo_core.journal.protocol import Journal
from hpo_core.model.errors import HpoError, SpecError, StudyNotFoundError
from hpo_core.retraining.model_registry import (
    CONTENT,
    DATA,
    KEY,
    Branch,
    Candidate,
    Champion,
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
    Rules,
    check_drift,
    example_noise,
    is_good_enough,
    promotion_test,
    tuned_for_worse,
)
from hpo_core.retraining.repeated_studies import (
    fingerprint,
    repeats_spec,
    trained_models,
    trials_of_repeats,
    tuning_spec,
)
from hpo_core.spec import StudySpec
from hpo_core.spec.data import DATA_PARAMETER
from hpo_core.spec.refusals import check_retraining
from hpo_core.study import Study
from hpo_core.tracking.mlflow_client import KnownRun, errors_without_credentials
from hpo_core.tracking.run_artifacts import Trained
from hpo_core.training.evaluation import Evaluation, EvaluationRequest, TrainedModel, evaluate_models
from hpo_core.views.failure_reasons import cure_in_python
from hpo_flows.deployed.permissions import Permissions
from hpo_flows.prefect_pages.artifacts import artifact_key
from hpo_flows.prefect_pages.tune_flow import Found, step
from hpo_flows.study_run.session import Session
from hpo_flows.study_run.study_flow import run_study


def check_function(evaluate: str, folders: Sequence[str] | None = None) -> None:
    """In a run of a deployment: only what the worker allows is imported, also where a registered model names it.

    Args:
        folders: that it will be imported from; None: not known yet.
    """
    if deployment.id is not None:
        permissions = Permissions.of_environment()
        places = [str(folder) for folder in permissions.import_folders] if folders is None else folders
        permissions.check_function("evaluate", evaluate, places)


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
        run = self.look_at_data(data)
        found: dict[str, Any] = {"model": self.model, "mlflow_run": run.run_id}
        if run.status == "FINISHED":
            found |= {"outcome": self._unchanged(run), "promoted": False, "done_before": True}
        else:
            with self._failing(run):
                decision = self._decide(run)
                version = self.promote(run, decision)
                self.report(run, decision, version)
            found |= {
                "outcome": decision.outcome(version),
                "promoted": decision.promoted,
                "done_before": False,
                "challenger": version,
                "drifted": decision.drift.drifted,
                "branches": [label.removeprefix("challenger, ") for label, _ in decision.rows[2:]],
                "study": decision.challenger.study,
            }
        return found | {"champion": self.registry.champion()}

    @step("look at the data", errors_without_credentials)
    def look_at_data(self, data: str) -> Found[KnownRun]:
        """The run for these data: the one that was begun, or a new one."""
        content = fingerprint(data)
        run = self.registry.begin(content, f"retrain {self.model}", data)
        if run.status == "FINISHED":
            return Found(run, self._unchanged(run))
        return Found(run, f"{data}, fingerprint {content[:12]}: retraining {run.tags[KEY]}")

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
            study = self._repeated(name, trial, run, "first")
            seeds = ("first champion", study, self._asked)
            first = self.evaluate_seeds(*seeds, searches=(name,), data=own, content=content)
            self.promote_first(run, first.card, name)

    @step("promote the first champion", errors_without_credentials)
    def promote_first(self, run: KnownRun, card: ModelCard, source: str) -> Found[int]:
        """Register the first version, and give it the alias."""
        self._upload(run, card)
        facts = {"hpo.study": card.study}
        version = self.registry.register(run, facts, f"The best of study {source}; the first champion.")
        self.registry.promote(version)
        self.registry.finish(run)
        words = f"version {version} is the first champion of {self.model}: the best of study {source}"
        return Found(version, words)

    def _decide(self, run: KnownRun) -> Decision:
        version = self.registry.champion()
        assert version is not None
        champion = self.evaluate_champion(version, run.tags[DATA])
        drift = self.check_for_drift(champion)
        steps = [TUNED_FOR_DRIFT if drift.drifted else TRAINED_AGAIN]
        challengers = []
        if not drift.drifted:
            card = champion.card
            again = self._repeated(card.study, card.repeats[0].trial, run, "again", after=drift)
            challengers.append(self._evaluated(run, card, again, "challenger trained again", card.searches))
            compared = self.compare(champion, challengers[0])
            steps.append(compared.words)
        if drift.drifted or compared.tunes:
            challengers.append(self._tuned(run, champion.card, drift if drift.drifted else compared))
        return self.test_challenger(run, champion, drift, challengers=challengers, steps=steps)

    @step("evaluate champion version {version}", errors_without_credentials)
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
        champion = Champion(version, card, card.scores(found), tuple(found[card.serving].losses))
        words = f"{_mean(card, champion.now)} on the new data, {_mean(card, card.losses)} on its own"
        return Found(champion, words)

    @step("check for drift", errors_without_credentials)
    def check_for_drift(self, champion: Champion) -> Found[Drift]:
        """Compare the champion's losses per example on the new data with those on its own."""
        drift = check_drift(champion.card.reference, champion.losses, limit=self.rules.drift_limit)
        return Found(drift, f"{drift.words()}; {TUNED_FOR_DRIFT if drift.drifted else TRAINED_AGAIN}")

    @step("compare with the champion", errors_without_credentials)
    def compare(self, champion: Champion, again: Candidate) -> Found[Branch]:
        """Tune if the champion's parameters, trained again, are worse than the champion."""
        level = self.rules.level
        noise = example_noise(champion.scores, again.scores)
        if is_good_enough(champion.now, again.card.losses, noise=noise, level=level):
            words = "trained again they are as good as the champion: no tuning"
            return Found(Branch(False, words), words)
        words = tuned_for_worse(level)
        return Found(Branch(True, words), words)

    @step("test the challenger", errors_without_credentials)
    def test_challenger(
        self, run: KnownRun, champion: Champion, drift: Drift, *, challengers: list[Candidate], steps: list[str]
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
        if fingerprint(data := run.tags[DATA]) != run.tags[CONTENT]:
            raise HpoError(
                f"The data {data!r} changed while champion and challengers were compared on them. Nothing was "
                "changed; start again once they are complete."
            )
        rows = [("champion, own data", tuple(champion.card.losses)), ("champion, new data", tuple(champion.now))]
        rows += [(f"challenger, {challenger.branch}", tuple(challenger.card.losses)) for challenger in challengers]
        decision = Decision(
            model=self.model,
            key=run.tags[KEY],
            champion_version=champion.version,
            promoted=verdict.wins,
            drift=drift,
            verdict=verdict,
            steps=tuple(steps),
            rows=tuple(rows),
            challenger=best.card,
        )
        self._upload(run, best.card)
        self.registry.keep_decision(run, decision)
        return Found(decision, verdict.words(best.card.metric, best.card.sign))

    def _upload(self, run: KnownRun, card: ModelCard) -> None:
        study = Study.open(card.study, self.journal, reading=True)
        serving = self._models(study, card)[card.serving]
        served = Trained(serving.params, serving.checkpoint, serving.folder, serving.base)
        self.registry.upload(run, card, served, study.spec.build, self.home.import_folders(study.spec))

    def _tuned(self, run: KnownRun, card: ModelCard, because: Drift | Branch) -> Candidate:
        name = f"{self.model}-{run.tags[KEY]}-tune"
        source = Study.open(card.searches[0], self.journal, reading=True).spec
        spec = tuning_spec(source, name, data=run.tags[DATA], studies=card.searches, key=run.tags[CONTENT])
        found = self.study_at_end(name, spec, after=because)
        if found.best is None:
            raise HpoError(f"Study {name!r} ended without a finite result; nothing was changed. See hpo show {name}.")
        best = self._repeated(name, found.best.trial, run, "best", after=because)
        return self._evaluated(run, card, best, "challenger tuned", (name, *card.searches)[:5])

    def _evaluated(
        self, run: KnownRun, card: ModelCard, study: Study, who: str, searches: tuple[str, ...]
    ) -> Candidate:
        data, content = run.tags[DATA], run.tags[CONTENT]
        return self.evaluate_seeds(who, study, card.evaluate, searches=searches, data=data, content=content)

    @step("promote", errors_without_credentials)
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

    @step("report", errors_without_credentials)
    def report(self, run: KnownRun, decision: Decision, version: int) -> Found[None]:
        """Show the decision in Prefect. It stands in MLflow by now: an API that does not answer changes nothing."""
        link = f"MLflow: `{self.registry.url(run)}`, version {version} of `{self.model}`."
        key = artifact_key(self.model, "decision")
        try:
            create_markdown_artifact(f"{decision.markdown()}\n\n{link}", key=key, description=decision.headline())
        except Exception as error:
            return Found(None, f"{link} It is not among Prefect's artifacts ({type(error).__name__}).")
        return Found(None, f"artifact {key}. {link}")

    def _repeated(self, source: str, trial: int, run: KnownRun, what: str, *, after: Any = None) -> Study:
        data, name = run.tags[DATA], f"{self.model}-{run.tags[KEY]}-{what}"
        entries, changes = list(self.journal.entries(source)), {DATA_PARAMETER: data} if data else {}
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

    @step("evaluate the {who}", errors_without_credentials)
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
        evaluated = self.evaluated(card, None)
        losses = [result.metrics[card.metric] * card.sign for result in evaluated]
        reference = evaluated[losses.index(min(losses))].losses
        if len(reference) < MIN_EXAMPLES:
            raise SpecError(
                f"{evaluate} returned {len(reference)} losses per example on {data or 'its own data'!r}; "
                f"the drift check of the next data needs {MIN_EXAMPLES} at least. Return one loss per example; then "
                "start again."
            )
        filled = [msgspec.structs.replace(repeat, loss=loss) for repeat, loss in zip(card.repeats, losses, strict=True)]
        card = msgspec.structs.replace(card, repeats=tuple(filled), reference=reference)
        found = Candidate(who.removeprefix("challenger "), card, card.scores(evaluated))
        words = f"{_mean(card, losses)} on {data or 'its own data'}, {len(losses)} seeds"
        return Found(found, words)

    def _models(self, study: Study, card: ModelCard) -> list[TrainedModel]:
        return trained_models(study, [repeat.trial for repeat in card.repeats], str(self.home.study_folder(study.name)))

    def evaluated(self, card: ModelCard, data: str | None) -> list[Evaluation]:
        """A card's models, on their own data or on other data."""
        study = Study.open(card.study, self.journal, reading=True)
        spec = study.spec
        check_function(card.evaluate, spec.pythonpath)
        if deployment.id is not None:
            Permissions.of_environment().check(spec)
        changes = {} if data is None else {DATA_PARAMETER: data}
        models = tuple(msgspec.structs.replace(one, params=one.params | changes) for one in self._models(study, card))
        request = EvaluationRequest(card.evaluate, tuple(self.home.import_folders(spec)), card.metric, models)
        return evaluate_models(request, timeout=self.rules.timeout)


def _mean(card: ModelCard, losses: Sequence[float]) -> str:
    return f"{card.metric} {fmean(losses) * card.sign:.4g}"


def _has_ended(study: Study) -> bool:
    halted = study.state.halted
    return study.status == "finished" or (halted is not None and bool(halted.rule))
