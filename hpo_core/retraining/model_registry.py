"""Models in MLflow's registry: versions with their card and weights, the alias ``champion``, past decisions.

A retraining is a run of its own, found again by the fingerprint of its data (tag ``hpo.content``). It is finished after
everything was done; a run that was interrupted goes on, one that failed is begun anew.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from hpo_core.checkpoints.storage import on_this_machine
from hpo_core.model.errors import HpoError
from hpo_core.retraining.promotion_policy import Drift, ExampleLosses, Verdict
from hpo_core.security.untrusted_text import markdown_code, markdown_text
from hpo_core.tracking.mlflow_client import KnownRun, RunStore, open_client
from hpo_core.tracking.run_artifacts import WEIGHTS, Trained, loading_words, write_model
from hpo_core.tracking.tracked_study import MetricPoint
from hpo_core.tracking.tracker_links import legal_key, param_value, run_url
from hpo_core.training.evaluation import Evaluation


class Repeat(msgspec.Struct, frozen=True):
    """One training of the configuration, with a seed of its own: a trial of the card's study."""

    trial: int
    loss: float = 0.0
    """Loss on the model's own data, by the evaluation function."""


class ModelCard(msgspec.Struct, frozen=True):
    """A registered version: one configuration trained with several seeds on one data set."""

    metric: str
    mode: str
    study: str
    """Study of this home that trained its repeats; its journal and its folder hold their parameters and checkpoints."""
    searches: tuple[str, ...]
    """Searches that led to it, newest first; a further search starts from their results."""
    data: str
    fingerprint: str
    evaluate: str
    repeats: tuple[Repeat, ...]
    reference: tuple[float, ...]
    """Losses per example of the serving repeat, on the model's own data."""

    @property
    def sign(self) -> float:
        """Factor between metric and loss: 1 for ``min``, -1 for ``max``."""
        return 1.0 if self.mode == "min" else -1.0

    @property
    def serving(self) -> int:
        """Index of the repeat to be used: the one with the smallest loss."""
        return self.losses.index(min(self.losses))

    @property
    def losses(self) -> list[float]:
        return [repeat.loss for repeat in self.repeats]

    def scores(self, found: Sequence[Evaluation]) -> tuple[ExampleLosses, ...]:
        """Losses of the repeats as an evaluation found them."""
        return tuple(
            ExampleLosses(one.metrics[self.metric] * self.sign, one.mean, examples=one.examples, losses=one.in_order)
            for one in found
        )


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


class Branch(msgspec.Struct, frozen=True):
    """Decision to tune again or not, with its reason."""

    tunes: bool
    words: str


class Candidate(msgspec.Struct, frozen=True):
    """A challenger: its card, with losses on the new data, those of the examples, and the branch that made it."""

    branch: str
    card: ModelCard
    scores: tuple[ExampleLosses, ...]

    @property
    def mean(self) -> float:
        return fmean(self.card.losses)


class Decision(msgspec.Struct, frozen=True):
    """Findings and decision of a retraining; it is stored before it is carried out."""

    model: str
    key: str
    champion_version: int
    promoted: bool
    drift: Drift
    verdict: Verdict
    steps: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float, ...]], ...]
    """Label and one loss per seed of each side."""
    challenger: ModelCard

    def headline(self) -> str:
        if self.promoted:
            return f"{self.model}: the challenger became champion"
        return f"{self.model}: version {self.champion_version} stays champion"

    def outcome(self, version: int) -> str:
        challenger, champion = (
            f"{fmean(values) * self.challenger.sign:.4g}" for values in (self.verdict.challenger, self.verdict.champion)
        )
        if self.promoted:
            change = f"version {version} became champion in place of version {self.champion_version}"
            return f"{change}: {self.challenger.metric} {challenger} instead of {champion} on the new data"
        return (
            f"version {self.champion_version} stays champion: {self.challenger.metric} {champion} on the new data, and "
            f"{challenger} of version {version} is {self.verdict.finding} (p = {self.verdict.p_value:.2g})"
        )

    def markdown(self) -> str:
        test = markdown_text(self.verdict.words(self.challenger.metric, self.challenger.sign))
        lines = [
            f"## {self.headline()}",
            "",
            f"Data {markdown_code(self.challenger.data)} (fingerprint `{self.challenger.fingerprint[:12]}`).",
            "",
            "1. **Drift check.** " + self.drift.words() + ".",
            *(f"{n}. **Branch.** {markdown_text(step)}." for n, step in enumerate(self.steps, 2)),
            f"{len(self.steps) + 2}. **Test.** {test}.",
            "",
            f"| {markdown_text(self.challenger.metric)} | mean | by seed |",
            "| --- | --- | --- |",
        ]
        for label, losses in self.rows:
            values = ", ".join(f"{loss * self.challenger.sign:.5g}" for loss in losses)
            lines.append(f"| {markdown_text(label)} | {fmean(losses) * self.challenger.sign:.5g} | {values} |")
        served = self.challenger.repeats[self.challenger.serving]
        lines += ["", f"Challenger: study `{self.challenger.study}`, trial {served.trial} serves."]
        return "\n".join(lines)


CHAMPION = "champion"
KEY = "hpo.retraining"
"""Tag: names the studies of a retraining; data's fingerprint, day, and a number where there are several."""
CONTENT = "hpo.content"
DATA = "hpo.data"
_CARD = "model.json"
_FOLDER = "model"


class ModelRegistry:
    """One registered model and the runs of its retrainings."""

    def __init__(self, name: str, tracking_uri: str, experiment: str, artifact_location: str | None = None) -> None:
        self.name = name
        self.tracking_uri = tracking_uri
        self._client = open_client(tracking_uri)
        self._store = RunStore(self._client, tracking_uri, experiment, artifact_location)

    def champion(self) -> int | None:
        """The version with the alias; None where there is none."""
        from mlflow.exceptions import MlflowException

        try:
            return int(self._client.get_model_version_by_alias(self.name, CHAMPION).version)
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise

    def card(self, version: int) -> ModelCard:
        """The card of a version.

        Raises:
            HpoError: the version was not registered by a retraining.
        """
        found = self._client.get_model_version(self.name, str(version))
        run_id = found.run_id
        if not run_id or not any(item.path == f"{_FOLDER}/{_CARD}" for item in self._listed(run_id)):
            raise HpoError(
                f"Version {version} of model {self.name!r} has no {_FOLDER}/{_CARD}: it was not registered by the "
                f"retrain flow. Give the alias {CHAMPION!r} to a version that was, or remove it and name the study of "
                "the first champion."
            )
        with tempfile.TemporaryDirectory(prefix="hpo-champion-") as folder:
            local = Path(self._client.download_artifacts(run_id, f"{_FOLDER}/{_CARD}", folder))
            return msgspec.json.decode(local.read_bytes(), type=ModelCard)

    def promote(self, version: int) -> None:
        self._client.set_registered_model_alias(self.name, CHAMPION, str(version))

    def begin(self, content: str, title: str, data: str) -> KnownRun:
        """The run for some data: finished or interrupted before, or a new one.

        Args:
            content: fingerprint of the data.
            data: their place; a run that was interrupted goes on with the same place only.
        """
        known = self._store.find(
            {CONTENT: content, "hpo.model": self.name}, deleted=True, order=["attributes.start_time DESC"]
        )
        newest = next((run for run in known if not run.deleted), None)
        if newest is not None and newest.status == "FINISHED":
            return newest
        if newest is not None and newest.status != "FAILED" and newest.tags.get(DATA) == data:
            self._store.set_status(newest, "RUNNING", None)
            return newest
        now = time.time()
        key = f"{content[:8]}-{datetime.fromtimestamp(now, UTC):%Y%m%d}" + (f"-{len(known) + 1}" if known else "")
        tags = {"hpo.kind": "retraining", KEY: key, CONTENT: content, "hpo.model": self.name, DATA: data}
        return self._store.create(f"{title} {key}", now, tags)

    def fail(self, run: KnownRun, error: BaseException) -> None:
        """End a run without a result: failed, or cancelled by a person or signal."""
        self._store.set_status(run, "FAILED" if isinstance(error, Exception) else "KILLED", time.time())

    def keep_decision(self, run: KnownRun, decision: Decision) -> None:
        self._store.write_text(run, decision.markdown(), "decision.md")
        self._store.write_text(run, json.dumps(msgspec.to_builtins(decision), indent=1), "decision.json")
        now, sign = time.time(), decision.challenger.sign
        points = [
            MetricPoint(legal_key(f"{label.replace(',', '')} {decision.challenger.metric}"), loss * sign, now, step)
            for label, losses in decision.rows
            for step, loss in enumerate(losses)
        ]
        points += [
            MetricPoint("drift", decision.drift.statistic, now, 0),
            MetricPoint("p_value", decision.verdict.p_value, now, 0),
        ]
        note = {"mlflow.note.content": decision.markdown(), "hpo.promoted": str(decision.promoted).lower()}
        self._store.log(run, points=points, tags=note)

    def upload(
        self, run: KnownRun, card: ModelCard, served: Trained, build: str | None = None, code: Sequence[str] = ()
    ) -> None:
        """Upload a model: its card, and parameters and weights of the repeat that serves.

        Args:
            build: what builds it, so that MLflow's own functions load it.
            code: folders that ``build`` is imported from.
        """
        with tempfile.TemporaryDirectory() as side:
            with on_this_machine(served.folder, served.checkpoint.uri, served.base) as file:
                what = f"model {self.name!r}"
                plain, built = write_model(what, served, file, build=build, code=code, side=Path(side))
            model = built or Path(side) / _FOLDER
            model.mkdir(exist_ok=True)
            shutil.copytree(plain, model, dirs_exist_ok=True)
            (model / _CARD).write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=1))
            self._store.upload(run, model, _FOLDER)
        self._store.log(run, params={legal_key(name): param_value(value) for name, value in served.params.items()})

    def register(self, run: KnownRun, tags: Mapping[str, Any], description: str) -> int:
        """The version made from a run's model; the same one when called again."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(self.name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        known = self._client.search_model_versions(f"name = '{self.name}'")
        made = next((one for one in known if one.run_id == run.run_id), None)
        if made is None:
            source, facts = f"runs:/{run.run_id}/{_FOLDER}", {key: str(value) for key, value in tags.items()}
            made = self._client.create_model_version(self.name, source, run.run_id, tags=facts)
        names = {str(item.path).rpartition("/")[2] for item in self._listed(run.run_id)}
        uri = f"models:/{self.name}/{made.version}"  # it is loaded as far as its files allow
        loading = loading_words(model=uri if "MLmodel" in names else "", folder=uri if WEIGHTS in names else "")
        self._client.update_model_version(
            self.name, str(made.version), "\n\n".join(filter(None, [description, loading]))
        )
        return int(made.version)

    def finish(self, run: KnownRun) -> None:
        self._store.set_status(run, "FINISHED", time.time())

    def url(self, run: KnownRun) -> str:
        return run_url(self.tracking_uri, self._store.experiment_id, run.run_id)

    def _listed(self, run_id: str) -> list[Any]:
        return list(self._client.list_artifacts(run_id, _FOLDER))
