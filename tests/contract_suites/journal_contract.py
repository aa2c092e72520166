"""JournalContract: what every journal must do."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from hpo_core.journal.protocol import Journal, Owner
from hpo_core.journal.sql import current_owner
from hpo_core.model.errors import FencedError, HpoError, StudyBusyError, StudyExistsError, StudyNotFoundError
from hpo_core.replay.audit import audit
from hpo_core.study import Study
from tests.contract_suites.fake_training import STUDY, FakeTraining, example_spec, new_study, snapshot

OpenJournal = Callable[[], Journal]


class JournalContract:
    """Subclass it in a test module and override :meth:`open_journal`."""

    @pytest.fixture
    def open_journal(self) -> OpenJournal:
        """A function that opens the same, initially empty journal again, as another process would."""
        raise NotImplementedError("Override the fixture open_journal in the subclass of JournalContract.")

    def test_entries_are_read_back_as_they_were_appended(self, open_journal: OpenJournal) -> None:
        training = FakeTraining(2, failures=0.1, nans=0.1)
        study = new_study(example_spec(), open_journal(), training)
        training.play(study)
        journal = open_journal()
        entries = list(journal.entries(STUDY))
        assert [entry.seq for entry in entries] == list(range(study.seq))
        assert snapshot(Study.open(STUDY, journal)) == snapshot(study)
        assert [e.seq for e in journal.entries(STUDY, 3, 6)] == [3, 4, 5]
        assert audit(entries).clean

    def test_studies_in_one_journal_are_independent(self, open_journal: OpenJournal) -> None:
        one = new_study(example_spec(), open_journal())
        two = new_study(example_spec(study="other"), open_journal())
        one.set_capacity(1)
        lengths = {info.name: info.entries for info in open_journal().studies()}
        assert lengths == {"other": 1, STUDY: 2}
        assert two.seq == 1

    def test_creating_a_study_twice_is_refused(self, open_journal: OpenJournal) -> None:
        new_study(example_spec(), open_journal())
        with pytest.raises(StudyExistsError, match=f"'{STUDY}' exists already"):
            new_study(example_spec(), open_journal())

    def test_opening_an_unknown_study_names_the_known_ones(self, open_journal: OpenJournal) -> None:
        new_study(example_spec(), open_journal())
        with pytest.raises(StudyNotFoundError, match=f"'nowhere' is not in .*{STUDY}"):
            list(open_journal().entries("nowhere"))

    def test_the_second_of_two_writers_is_refused(self, open_journal: OpenJournal) -> None:
        first = new_study(example_spec(), open_journal())
        second = Study.open(STUDY, open_journal())
        first.set_capacity(1)
        with pytest.raises(FencedError, match="entry 1 of epoch 0 .*refused"):
            second.set_capacity(1)
        assert open_journal().info(STUDY).entries == 2

    def test_a_forced_claim_fences_the_previous_controller(self, open_journal: OpenJournal) -> None:
        journal = open_journal()
        old = new_study(example_spec(), journal)
        owner = current_owner()
        old.epoch = journal.claim(STUDY, owner)
        jobs = old.set_capacity(2)
        other = Owner("elsewhere", 1, 0.0)
        second = open_journal()
        with pytest.raises(StudyBusyError, match=str(owner.pid)):
            second.claim(STUDY, other)
        new = Study.open(STUDY, second)
        new.epoch = second.claim(STUDY, other, force=True)
        with pytest.raises(FencedError):
            journal.renew(STUDY, old.epoch)
        with pytest.raises(FencedError):
            old.tell(jobs[0], {"loss": 0.1})
        new.recover("elsewhere")
        assert new.state.completed_jobs == 0 and len(new.state.waiting) == 2
        second.release(STUDY, new.epoch)
        assert open_journal().info(STUDY).owner is None

    def test_concurrent_writers_lose_and_duplicate_nothing(self, open_journal: OpenJournal) -> None:
        new_study(example_spec(search={"method": "random", "configs": 200}), open_journal())
        refused: list[HpoError] = []

        def write() -> None:
            for _ in range(10):
                try:
                    Study.open(STUDY, open_journal()).ask()
                except HpoError as error:
                    refused.append(error)

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        study = Study.open(STUDY, open_journal())
        assert all(isinstance(error, FencedError) for error in refused)
        assert len(study.state.trials) == 40 - len(refused) == study.seq - 1
        assert audit(open_journal().entries(STUDY)).clean
