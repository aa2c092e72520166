from __future__ import annotations

import os
import threading
import time
import uuid
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpo_core import MemoryJournal, Study
from hpo_core.execution.enqueue_requests import EnqueueRequest, EnqueueRequests
from hpo_core.home import Home
from hpo_core.journal.codec import decode_entry, encode_entry
from hpo_core.journal.protocol import Owner
from hpo_core.model.errors import FencedError, HpoError
from hpo_core.model.events import ConfigurationEnqueued
from hpo_core.replay.audit import audit
from hpo_flows.command import app
from tests.conftest import World, fresh, make_spec
from tests.methods import facts


def enqueued(study: Study) -> list[ConfigurationEnqueued]:
    return facts(study.journal.entries(study.name), ConfigurationEnqueued)


def answered(study: Study, requests: EnqueueRequests, request: EnqueueRequest) -> None:
    found: list[Exception] = []

    def wait() -> None:
        try:
            assert request.wait(600)
        except Exception as error:
            found.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while waiting.is_alive():
        requests.on_tick()
        time.sleep(0.01)
    if found:
        raise found[0]


def test_a_request_is_enqueued_recorded_and_audited(tmp_path: Path) -> None:
    world = World(5)
    study = fresh(make_spec(), MemoryJournal(), world)
    requests = EnqueueRequests(study, tmp_path)
    requests.on_tick()  # nobody asked yet: there is no folder
    running = world.play(study, steps=4)
    answered(study, requests, EnqueueRequest(tmp_path, {"x": 0.125, "c": "b"}))
    assert [event.params for event in enqueued(study)] == [{"x": 0.125, "c": "b"}]
    answered(study, requests, EnqueueRequest(tmp_path, {"x": 0.125}, skip_if_exists=True))
    assert len(enqueued(study)) == 1
    world.play(study, running)
    assert any(trial.queued and trial.params == {"x": 0.125, "c": "b"} for trial in study.state.trials)
    lines = [encode_entry(entry) for entry in study.journal.entries(study.name)]
    assert audit(map(decode_entry, lines)).clean and not list((tmp_path / "requests").iterdir())
    study.check()


def test_a_controller_that_was_killed_in_between_enqueues_it_once(study: Study, tmp_path: Path) -> None:
    EnqueueRequest(tmp_path, {"x": 0.125})
    (asked,) = (tmp_path / "requests").iterdir()
    content = asked.read_bytes()
    EnqueueRequests(study, tmp_path).on_tick()
    asked.write_bytes(content)  # as if it had been killed before it removed the file
    asked.chmod(0o600)
    again = Study.open(study.name, study.journal, reading=True)
    EnqueueRequests(again, tmp_path).on_tick()
    assert len(enqueued(study)) == 1 and not list((tmp_path / "requests").iterdir())


def test_what_cannot_be_enqueued_is_refused_with_the_reason(study: Study, tmp_path: Path) -> None:
    requests = EnqueueRequests(study, tmp_path)
    with pytest.raises(HpoError, match="'y'"):
        answered(study, requests, EnqueueRequest(tmp_path, {"y": 1}))
    EnqueueRequest(tmp_path, {"x": 0.5})
    (file,) = (tmp_path / "requests").iterdir()
    file.write_text("[[[")
    requests.on_tick()
    assert not enqueued(study) and [path.suffix for path in (tmp_path / "requests").iterdir()] == [".refused"]


_GARBAGE = {
    "deep": lambda path: path.write_text('{"params":' + "[" * 200_000),
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "pipe": os.mkfifo,
    "huge": lambda path: path.write_bytes(b'{"params":{"x":0.5,"y":"' + b"x" * 2**21 + b'"}}'),
}


@pytest.mark.parametrize("garbage", _GARBAGE)
def test_no_request_ends_the_study(study: Study, tmp_path: Path, garbage: str) -> None:
    good = EnqueueRequest(tmp_path, {"x": 0.5})
    folder = tmp_path / "requests"
    _GARBAGE[garbage](folder / f"{1:020d}-{uuid.uuid4().hex}.asked")  # older than the good one
    requests = EnqueueRequests(study, tmp_path)
    for _ in range(2):
        requests.on_tick()
    assert [event.params for event in enqueued(study)] == [{"x": 0.5}] and good.wait(0)
    assert len(list(folder.glob("*.refused"))) == 1


def test_a_controller_that_lost_the_study_leaves_requests_to_the_next(study: Study, tmp_path: Path) -> None:
    EnqueueRequest(tmp_path, {"x": 0.125})
    lost = Study.open(study.name, study.journal, reading=True)
    lost.epoch = study.epoch
    study.journal.claim(study.name, Owner("next", 1, 0.0), force=True)
    with pytest.raises(FencedError):
        EnqueueRequests(lost, tmp_path).on_tick()
    following = Study.open(study.name, study.journal)
    EnqueueRequests(following, tmp_path).on_tick()
    assert [event.params for event in enqueued(study)] == [{"x": 0.125}]


def test_a_request_stays_until_it_is_taken(study: Study, tmp_path: Path) -> None:
    request = EnqueueRequest(tmp_path, {"x": 0.5})
    assert not request.wait(0.0)
    EnqueueRequests(study, tmp_path).on_tick()
    assert request.wait(0.0) and request.name in study.state.requests


def test_the_command_writes_the_entry_itself_where_nobody_drives_the_study(tmp_path: Path) -> None:
    home = Home(tmp_path)
    spec = make_spec(study="idle")
    Study.create(spec, home.open_journal())
    found = CliRunner().invoke(app, ["enqueue", "idle", "--params", "x=0.125", "c=b", "--home", str(tmp_path)])
    assert found.exit_code == 0, found.output
    assert "enqueued in idle" in found.output
    again = Study.open("idle", home.read_journal(), reading=True)
    assert list(again.state.queue) == [{"x": 0.125, "c": "b"}]
    assert audit(home.read_journal().entries("idle")).clean
    refused = CliRunner().invoke(app, ["enqueue", "idle", "--params", "y=1", "--home", str(tmp_path)])
    assert isinstance(refused.exception, HpoError) and "'y'" in str(refused.exception)
