"""ModelCard and Decision: the facts kept with a registered model and with a retraining."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import msgspec

from hpo_core.model.trial import Checkpoint, Params
from hpo_core.retraining.challenger_test import Verdict
from hpo_core.retraining.drift import Drift
from hpo_core.retraining.example_noise import Scores
from hpo_core.security.untrusted_text import markdown_code, markdown_text


class Repeat(msgspec.Struct, frozen=True):
    """One training of the configuration, with a seed of its own."""

    trial: int
    seed: int
    params: Params
    checkpoint: Checkpoint
    loss: float
    """Loss on the model's own data, by the evaluation function."""


class ModelCard(msgspec.Struct, frozen=True):
    """A registered version: one configuration trained with several seeds on one data set."""

    metric: str
    mode: str
    study: str
    """Study that trained its repeats; schedule and parameters are recorded there."""
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
        return index_of_smallest([repeat.loss for repeat in self.repeats])

    @property
    def losses(self) -> list[float]:
        """Losses of all repeats on the model's own data."""
        return [repeat.loss for repeat in self.repeats]


class Candidate(msgspec.Struct, frozen=True):
    """A challenger: its card, with losses on the new data, those of the examples, and the branch that made it."""

    branch: str
    card: ModelCard
    scores: tuple[Scores, ...]

    @property
    def mean(self) -> float:
        """Mean loss of its repeats."""
        return fmean(self.card.losses)


class Decision(msgspec.Struct, frozen=True):
    """What a retraining found and decided; it is stored before it is carried out."""

    model: str
    key: str
    data: str
    fingerprint: str
    metric: str
    mode: str
    champion_version: int
    promoted: bool
    drift: Drift
    verdict: Verdict
    steps: tuple[str, ...]
    """Why each branch was taken."""
    rows: tuple[tuple[str, tuple[float, ...]], ...]
    """What was compared: label and one loss per seed."""
    challenger: ModelCard

    @property
    def sign(self) -> float:
        """Factor between metric and loss: 1 for ``min``, -1 for ``max``."""
        return 1.0 if self.mode == "min" else -1.0

    def headline(self) -> str:
        """The decision in one line."""
        if self.promoted:
            return f"{self.model}: the challenger became champion"
        return f"{self.model}: version {self.champion_version} stays champion"

    def outcome(self, version: int) -> str:
        """What came of it, for a list of runs: ``version 3 became champion: val_loss 0.2103 instead of 0.3551 ...``.

        Args:
            version: that the challenger was registered as.
        """
        challenger, champion = (
            f"{fmean(values) * self.sign:.4g}" for values in (self.verdict.challenger, self.verdict.champion)
        )
        if self.promoted:
            change = f"version {version} became champion in place of version {self.champion_version}"
            return f"{change}: {self.metric} {challenger} instead of {champion} on the new data"
        return (
            f"version {self.champion_version} stays champion: {self.metric} {champion} on the new data, and "
            f"{challenger} of version {version} is {self.verdict.finding} (p = {self.verdict.p_value:.2g})"
        )

    def markdown(self) -> str:
        """The decision as Markdown: what was compared, and why the champion changed or stayed."""
        test = markdown_text(self.verdict.words(self.metric, self.sign))
        lines = [
            f"## {self.headline()}",
            "",
            f"Data {markdown_code(self.data)} (fingerprint `{self.fingerprint[:12]}`).",
            "",
            "1. **Drift check.** " + self.drift.words() + ".",
            *(f"{n}. **Branch.** {markdown_text(step)}." for n, step in enumerate(self.steps, 2)),
            f"{len(self.steps) + 2}. **Test.** {test}.",
            "",
            f"| {markdown_text(self.metric)} | mean | by seed |",
            "| --- | --- | --- |",
        ]
        for label, losses in self.rows:
            values = ", ".join(f"{loss * self.sign:.5g}" for loss in losses)
            lines.append(f"| {markdown_text(label)} | {fmean(losses) * self.sign:.5g} | {values} |")
        served = self.challenger.repeats[self.challenger.serving]
        params = ", ".join(
            markdown_text(f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {value}")
            for name, value in served.params.items()
        )
        lines += ["", f"Challenger: study `{self.challenger.study}`, trial {served.trial} serves; {params}."]
        return "\n".join(lines)

    def plain(self) -> dict[str, Any]:
        """The decision as JSON-compatible values."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def index_of_smallest(losses: Sequence[float]) -> int:
    """Index of the smallest loss."""
    return min(range(len(losses)), key=losses.__getitem__)
