"""SamplerContract: what every sampler must do."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from hpo_core.journal.memory import MemoryJournal
from hpo_core.study import Study
from tests.contract_suites.fake_training import STUDY, FakeTraining, example_spec, new_study

SamplerSettings = dict[str, Any]


class SamplerContract:
    """Subclass it in a test module and override :meth:`sampler_settings`.

    ``configs`` and ``may_repeat`` are for samplers that are slow, or that may propose a configuration again.
    """

    @pytest.fixture
    def sampler_settings(self) -> SamplerSettings:
        """The section ``sampler:`` of a study file, such as ``{"name": "TPESampler", "n_startup_trials": 5}``."""
        raise NotImplementedError("Override the fixture sampler_settings in the subclass of SamplerContract.")

    def configs(self, sampler_settings: SamplerSettings) -> int:
        """Number of configurations of the studies; fewer for a slow sampler."""
        return 30

    def may_repeat(self, sampler_settings: SamplerSettings) -> bool:
        """Whether the sampler may propose many configurations again after a restart."""
        return False

    def play(
        self, sampler_settings: SamplerSettings, journal: MemoryJournal | None = None, steps: int | None = None
    ) -> Study:
        training = FakeTraining(3, failures=0.05, nans=0.05)
        search = {"method": "asha", "configs": self.configs(sampler_settings), "max_resource": 9, "reduction_factor": 3}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = new_study(example_spec(sampler=sampler_settings, search=search), journal, training)
            training.play(study, steps=steps)
        return study

    def test_proposals_are_inside_the_space(self, sampler_settings: SamplerSettings) -> None:
        study = self.play(sampler_settings)
        space = study.spec.search_space()
        assert study.status == "finished"
        for trial in study.state.trials:
            assert space.complaints(trial.params) == []

    def test_the_same_history_gives_the_same_proposals(self, sampler_settings: SamplerSettings) -> None:
        one, two = self.play(sampler_settings), self.play(sampler_settings)
        assert [t.params for t in one.state.trials] == [t.params for t in two.state.trials]

    def test_a_resumed_study_continues_the_sequence_of_proposals(self, sampler_settings: SamplerSettings) -> None:
        journal = MemoryJournal()
        study = self.play(sampler_settings, journal, steps=10)
        again = Study.open(STUDY, journal)
        again.recover("next")
        FakeTraining(4).play(again)
        params = [repr(trial.params) for trial in again.state.trials]
        old, new = params[: len(study.state.trials)], params[len(study.state.trials) :]
        assert old[:3] != new[:3], "the sampler started its sequence again"
        if not self.may_repeat(sampler_settings):
            assert sum(p in old for p in new) < len(new) / 2
        assert again.state.trials[0].params == study.state.trials[0].params
