"""Journals of every released format are read for ever, to the same facts, and audited clean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from hpo_core import Study
from hpo_core.journal.codec import decode_entry, encode_entry
from hpo_core.model.errors import JournalError, SpecError
from hpo_core.model.events import FORMAT, ControllerStarted, Event, Stimulus
from hpo_core.model.trial import Stage
from hpo_core.replay.audit import audit
from hpo_core.replay.rerun import rerun_spec
from hpo_core.spec import StudySpec
from hpo_core.spec.gone_settings import GONE, GoneSetting
from tests.conftest import make_spec
from tests.golden.make import FOLDER, METHODS, studies, summary

JOURNALS = sorted(FOLDER.glob("*.jsonl"))


def test_the_present_format_has_its_golden_journal() -> None:
    assert {
        FOLDER / f"{name}-format-{FORMAT}.jsonl"
        for name in ("every-event", "limited", "abandoned", "enqueued", *METHODS)
    } <= set(JOURNALS)


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_golden_journal(path: Path) -> None:
    entries = [decode_entry(line) for line in path.read_text().splitlines()]
    study = Study.from_entries(entries)
    study.check()
    assert summary(study) == json.loads(path.with_suffix(".json").read_text())
    report = audit(entries)
    assert report.clean, report.findings
    written = [encode_entry(entry) for entry in entries]
    assert [encode_entry(decode_entry(line)) for line in written] == written
    if entries[0].format == FORMAT:  # others are read as this version would have written them
        assert written == path.read_text().splitlines()


GONE_JOURNALS = {
    "repeated": r"repeats = 3: is no setting any more \(loop over seeds .*\); read this study with the version that",
    "grid-drawn": r"search.repeats = 3: is no setting any more",
    "drawn-grid": r"search.random = \['x'\]: is no setting any more",
    "expression": "packing.demand.memory = '2GB .*What depends on the parameters is said by a function",
    "exact-hops": "data.scheduler: Input should be 'remaining' or 'randomized'",
    "hopped-gangs": "training.gang = 'auto', and data: this version trains each model",
}


@pytest.mark.parametrize("name", GONE_JOURNALS)
def test_a_study_with_a_setting_that_is_gone_is_refused_in_one_sentence(name: str) -> None:
    lines = (FOLDER / "gone" / f"{name}-format-{FORMAT}.jsonl").read_text().splitlines()
    with pytest.raises(SpecError, match=GONE_JOURNALS[name]):
        Study.from_entries([decode_entry(line) for line in lines])


OF_ONE_VALUE = [gone for gone in GONE if gone.read and gone.place.count(".") < 2]


@pytest.mark.parametrize("gone", OF_ONE_VALUE, ids=lambda gone: gone.place)
def test_a_recorded_study_with_the_value_that_holds_is_read_and_another_one_refused(gone: GoneSetting) -> None:
    needed: dict[str, dict[str, Any]] = {
        "grid": {"points": {"x": 2, "d": 2}},
        "sha": {"configs": 9, "max_resource": 9, "min_resource": 1, "reduction_factor": 3},
        "pasha": {"configs": 9, "max_resource": 9},
    }
    method = gone.search or "pbt"
    study = make_spec(search={"method": method} | needed.get(method, {})).plain()
    part, _, name = gone.place.rpartition(".")
    section = study[part] if part else study
    read = StudySpec.from_journal(study).plain()
    (section[name],) = gone.read
    assert StudySpec.from_journal(study).plain() == read
    with pytest.raises(SpecError, match=rf"{gone.place}: is no setting any more: .*\. Drop it"):
        StudySpec.from_plain(study)
    section[name] = 7
    with pytest.raises(SpecError, match=rf"^journal: {gone.place} = 7: is no setting any more .*; read this study"):
        StudySpec.from_journal(study)


@pytest.mark.parametrize(
    "changes",
    [
        {"journal": {"retry_seconds": 5}},
        {"training": {"grace": 1.0}},
        {"warm_start": {"studies": ["a"], "decay": 0.9, "first": 5}},
        {"cluster": {"kind": "slurm", "interface": "ib0", "prologue": ["module load cuda"], "wait": 60.0}},
        {"packing": {"look_ahead": 3, "demand": {"unit_seconds": 2.0}}},
        {"space": {"x": {"type": "float", "low": 0.0, "high": 1.0, "default": 0.5, "static": True}}},
        {"share": {"pool": "p", "slots": 3}},
    ],
    ids=str,
)
def test_a_recorded_setting_that_changes_no_result_of_a_journal_is_not_read(changes: dict[str, Any]) -> None:
    study = make_spec().plain()
    read = StudySpec.from_journal(study | changes).plain()
    assert StudySpec.from_plain(read | {"pythonpath": []}).plain() == read
    with pytest.raises(SpecError, match="is no setting any more"):
        StudySpec.from_plain(study | changes)


def test_a_recorded_study_with_two_limits_on_losses_is_refused_in_one_sentence() -> None:
    study = make_spec(training={"retries": {"lost": 9}}).plain()
    study["training"]["max_lost"] = 3
    with pytest.raises(SpecError, match=r"max_lost and training.retries.lost: this version has one of them; read this"):
        StudySpec.from_journal(study)


def test_a_population_recorded_with_static_parameters_keeps_them() -> None:
    study = make_spec(search={"method": "pbt", "static": ["x"]}).plain()
    recorded = study | {"search": {key: one for key, one in study["search"].items() if key != "static"}}
    recorded["space"] = {name: one | {"static": name == "x"} for name, one in study["space"].items()}
    assert StudySpec.from_journal(recorded).plain() == study


def test_a_packed_study_recorded_with_kept_processes_has_fresh_ones() -> None:
    study = make_spec(packing=True).plain()
    recorded = study | {"training": study["training"] | {"process": "kept"}}
    assert StudySpec.from_journal(recorded).plain() == study
    with pytest.raises(SpecError, match="training.process = kept, and packing: a process that waits"):
        StudySpec.from_plain(recorded)


def test_a_rerun_recorded_with_its_source_beside_the_record_keeps_both() -> None:
    lines = (FOLDER / "every-event-format-1.jsonl").read_text().splitlines()
    study = rerun_spec([decode_entry(line) for line in lines], "again").plain()
    rest = {key: one for key, one in study["search"]["study_record"].items() if key != "source"}
    recorded = study | {"search": {"method": "recorded", "source": "golden", "study_record": rest}}
    assert StudySpec.from_journal(recorded).plain() == study


def test_what_a_recorded_warm_start_tried_first_is_tried_first() -> None:
    first, second = {"x": 0.25, "c": "a", "d": 1}, {"x": 0.5, "c": "b", "d": 2}
    past = [{"params": second, "losses": {1: [0.3]}, "proposed": 1}, {"params": first, "losses": {3: [0.1]}}]
    settings = {"studies": ["a"], "proposals": [first, second], "past": past}
    warm = StudySpec.from_journal(make_spec().plain() | {"warm_start": settings}).warm_start
    assert warm is not None and warm.proposals == [first, second]
    assert [one.losses for one in warm.past or ()] == [{1: [0.3]}, {3: [0.1]}, {}]


@pytest.mark.parametrize("name", ["further", "gangs-further"])
def test_a_study_with_training_beyond_the_search_is_refused_in_one_sentence(name: str) -> None:
    lines = (FOLDER / "gone" / f"{name}-format-{FORMAT}.jsonl").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if "TrialExtended" in line)
    Study.from_entries([decode_entry(line) for line in lines[:at]]).check()
    with pytest.raises(JournalError, match=f"entry {at}: a trial was trained beyond the search.* read this study with"):
        decode_entry(lines[at])


def test_a_rerun_that_trains_beyond_its_record_is_refused_in_one_sentence() -> None:
    lines = (FOLDER / "every-event-format-1.jsonl").read_text().splitlines()
    record = rerun_spec([decode_entry(line) for line in lines], "again").plain()
    none = record["search"]["study_record"] | {"further": []}
    assert StudySpec.from_journal(record | {"search": record["search"] | {"study_record": none}}).plain() == record
    some = none | {"further": [{"trial": 0, "target": 90}]}
    with pytest.raises(SpecError, match=r"further = \[.*\]: is no setting any more .*; read this study"):
        StudySpec.from_journal(record | {"search": record["search"] | {"study_record": some}})


def test_every_kind_of_fact_is_in_them() -> None:
    events: set[type] = set()
    stimuli: set[type] = set()
    for study in studies().values():
        for entry in study.journal.entries("golden"):
            events.update(type(event) for event in entry.events)
            stimuli.add(type(entry.stimulus))
    assert events == set(get_args(Event))
    assert {kind.__name__ for kind in set(get_args(Stimulus)) - stimuli} <= {"JobAsked"}


def test_where_jobs_run_is_read_back_until_they_end_or_their_controller_does() -> None:
    lines = (FOLDER / "placed-format-1.jsonl").read_text().splitlines()
    entries = [decode_entry(line) for line in lines]
    taken_over = next(entry.seq for entry in entries if isinstance(entry.stimulus, ControllerStarted) and entry.seq > 1)
    study = Study.from_entries(entries[:1])
    seen = set()
    for entry in entries[1:]:
        study.replay(entry)
        seen.update(placed.share for placed in study.state.placed.values())
        assert {grant.attempt for n, grant in study.state.running.items() if n in study.state.placed} == {
            placed.attempt for placed in study.state.placed.values()
        }
        if entry.seq == taken_over:
            assert not study.state.placed
    assert seen == {(250, 2 * 10**9, 1000), (250, 7 * 10**8, 1000)}
    assert 0 < len(study.state.placed) < len(study.state.running), "some run, others wait"


def test_newer_formats_and_damage_are_refused_with_the_cure() -> None:
    line = JOURNALS[0].read_text().splitlines()[3]
    newer = json.loads(line) | {"format": FORMAT + 1, "events": [{"is": "SomethingNew"}]}
    with pytest.raises(JournalError, match=f"format {FORMAT + 1}.*Upgrade"):
        decode_entry(json.dumps(json.loads(line) | {"format": FORMAT + 1}))
    with pytest.raises(JournalError, match=f"format {FORMAT + 1}.*Upgrade"):
        decode_entry(json.dumps(newer))
    with pytest.raises(JournalError, match="cannot be read"):
        decode_entry(line[: len(line) // 2])


def test_audit_finds_what_was_tampered_with() -> None:
    entries = [decode_entry(line) for line in JOURNALS[0].read_text().splitlines()]
    text = JOURNALS[0].read_text().splitlines()
    at = next(i for i, line in enumerate(text) if '"rung":1' in line and '"JobGranted"' in line)
    forged = json.loads(text[at])
    for event in forged["events"]:
        if event["is"] == "JobGranted" and event["stage"]["rung"] == 1:
            event["target"] += 1
    entries[at] = decode_entry(json.dumps(forged))
    report = audit(entries, check_invariants=False)
    assert [finding.seq for finding in report.findings][:1] == [at]


def test_every_stage_of_a_job_is_in_the_journals_of_the_present_format() -> None:
    text = "".join(path.read_text() for path in JOURNALS if path.stem.endswith(f"-format-{FORMAT}"))
    for stage in get_args(Stage):
        assert f'"stage":{{"is":"{stage.__name__}"' in text
