"""What a study claims of a pool. The judge gives a copy of the study unlimited capacity, and counts its grants."""

from __future__ import annotations

import msgspec
import pytest

from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.trial import Checkpoint
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from tests.conftest import make_spec
from tests.contract_suites.fake_training import FakeTraining, new_study
from tests.methods import spec_of

MOST = 200


def granted_without_limit(study: Study) -> int:
    """Jobs that run in a copy of the study once it may use as many slots as it likes."""
    journal = MemoryJournal()
    first, *others = study.journal.entries(study.name)
    journal.create(study.name, first)
    for entry in others:
        journal.append(study.name, entry)
    copy = Study.open(study.name, journal)
    copy.set_capacity(MOST)
    return len(copy.state.running)


def compared(spec: StudySpec, workers: int) -> list[tuple[int, int]]:
    """(claimed, granted by the copy) at each step of a study with failures."""
    training = FakeTraining(workers, workers=workers, failures=0.05, nans=0.05)
    study = new_study(spec, MemoryJournal(), training)
    running = list(study.set_capacity(workers))
    found = [(study.demand(MOST), granted_without_limit(study))]
    while running:
        running += study.tell_report(training.report(running.pop(training.random.randrange(len(running)))))
        found.append((study.demand(MOST), granted_without_limit(study)))
    assert study.demand(MOST) == 0
    return found


@pytest.mark.parametrize(
    "name", ["asha-brackets", "hyperband", "pasha", "stopping", "pbt", "pbt-generation", "grid", "pareto-asha"]
)
def test_a_study_claims_what_it_could_grant(name: str) -> None:
    for claimed, granted in compared(spec_of(name), workers=3):
        assert claimed >= granted, (claimed, granted)
        if not name.startswith("pbt"):  # a trial may have to wait for one that was granted just now
            assert claimed == granted


def test_the_count_stops_at_its_limit() -> None:
    study = new_study(spec_of("asha"))
    assert [study.demand(most) for most in (0, 5, 1000)] == [0, 5, 24]


def test_a_halted_study_claims_its_running_jobs_alone() -> None:
    study = new_study(spec_of("asha"))
    study.set_capacity(4)
    study.stop("a person")
    assert study.demand(MOST) == 4


def test_a_limit_of_the_resource_limits_the_claim() -> None:
    study = new_study(spec_of("asha", stop={"total_resource": 3}))
    assert study.demand(MOST) == granted_without_limit(study) == 3


def test_a_study_whose_trials_grow_claims_kappa_slots_for_each_job() -> None:
    """The example of the paper: 8 jobs and kappa 4 can use 32 slots."""
    grows = {"training": {"gang": "auto"}, "scaling": {"speedups": {2: 1.9, 4: 3.6}}}
    search = {"method": "asha", "configs": 8, "min_resource": 1, "max_resource": 4, "reduction_factor": 2}
    study = new_study(make_spec(search=search, **grows))
    assert (study.demand(MOST), study.job_slots) == (32, 1)


@pytest.mark.parametrize("limit", [{"max_count": 6}, {"max_bytes": 2000}])
@pytest.mark.parametrize("name", ["asha", "hyperband"])
def test_a_limit_of_checkpoints_limits_the_claim(name: str, limit: dict[str, int]) -> None:
    """Claimed are jobs that fit beside what is kept, and one where something may go; none where none can begin."""
    training = FakeTraining(3, workers=3)
    study = new_study(spec_of(name, checkpoints=limit), MemoryJournal(), training)
    running = list(study.set_capacity(3))
    full = 0
    while running:
        job = running.pop(training.random.randrange(len(running)))
        saved = Checkpoint(f"{job.trial}-{job.attempt}", "", job.target, 100, None)
        running += study.tell_report(msgspec.structs.replace(training.good(job), checkpoint=saved))
        claimed, granted, used = study.demand(MOST), granted_without_limit(study), study.state.slots_in_use
        assert used <= claimed <= granted and (claimed > used) == (granted > used), (claimed, granted, used)
        full += claimed == used
    assert full and study.finished
