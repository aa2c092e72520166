"""Files that go with a job to a worker that does not see the study's folder, and come back."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hpo_core.checkpoints import files
from hpo_core.model.errors import StorageError
from hpo_core.model.trial import Checkpoint, Job, Outcome, Rung
from hpo_core.training.request import JobRequest, RankPlace, decode_report, encode_request
from hpo_flows.dask.carried_files import MOST_BYTES, Carried, CarriedFiles, Returned, sees, train_apart

ROOT = Path(__file__).parents[2]


def request(folder: Path, attempt: int = 1, target: int = 1, checkpoint: Checkpoint | None = None) -> JobRequest:
    return JobRequest(
        study="s", job=Job(3, attempt, Rung(0, 0), target, {"x": 0.5}, checkpoint), metric="loss", seed=1,
        objective="tests.flows.objectives:good", pythonpath=(str(ROOT),), folder=str(folder),
    )  # fmt: skip


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return tmp_path / "study"


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir(mode=0o700)
    return folder


def apart(carried: Carried) -> Carried:
    """The same on a computer where the folder holds another token."""
    return msgspec.structs.replace(carried, token="of another folder")


def test_a_worker_sees_the_folder_by_its_token(study: Path) -> None:
    carried = CarriedFiles(study).of(request(study))
    assert sees(carried) and not sees(apart(carried)) and carried.files == {}
    assert CarriedFiles(study).of(request(study)).token == carried.token, "the next controller's is the same"
    assert not sees(Carried(str(study / "elsewhere"), carried.token))


def test_a_trial_goes_on_without_the_folder(study: Path, scratch: Path) -> None:
    own = CarriedFiles(study)
    first = request(study)
    encoded, returned = train_apart(encode_request(first), apart(own.of(first)), str(scratch))
    report = own.take(first, decode_report(encoded), returned)
    assert report is not None and report.outcome is Outcome.COMPLETED and report.checkpoint is not None
    assert files.load(study, report.checkpoint, "checkpoints")["resource"] == 1
    assert (study / first.log_path).is_file()
    assert not [path for path in scratch.rglob("*") if path.suffix in (".safetensors", ".log", ".part")]

    second = request(study, 2, 3, report.checkpoint)
    carried = own.of(second)
    assert carried.files.keys() == {report.checkpoint.uri}, "it is known now that a worker needs it"
    encoded, returned = train_apart(encode_request(second), apart(carried), str(scratch))
    later = own.take(second, decode_report(encoded), returned)
    assert later is not None and later.checkpoint is not None and later.checkpoint.parent == report.checkpoint.uri
    assert not list(scratch.rglob("*.safetensors"))

    there = train_apart(encode_request(second), apart(Carried(str(study), "")), str(scratch))
    assert there[1].lacks and own.take(second, decode_report(there[0]), there[1]) is None, "it is sent again"


def test_a_damaged_checkpoint_is_found_where_it_is_loaded(study: Path, scratch: Path) -> None:
    own, first = CarriedFiles(study), request(study)
    encoded, returned = train_apart(encode_request(first), apart(own.of(first)), str(scratch))
    report = own.take(first, decode_report(encoded), returned)
    assert report is not None and report.checkpoint is not None
    second, path = request(study, 2, 3, report.checkpoint), study / report.checkpoint.uri
    for damage in (lambda: path.write_bytes(path.read_bytes()[:-3]), path.unlink):
        damage()
        encoded, _ = train_apart(encode_request(second), apart(own.of(second)), str(scratch))
        assert decode_report(encoded).outcome is Outcome.CHECKPOINT_BAD


def test_a_worker_cannot_choose_where_its_checkpoint_is_written(study: Path, scratch: Path) -> None:
    own, first = CarriedFiles(study), request(study)
    encoded, returned = train_apart(encode_request(first), apart(own.of(first)), str(scratch))
    good = decode_report(encoded)
    assert good.checkpoint is not None
    for changed in ({"uri": "checkpoints/trial-00000/rung-0-attempt-1.safetensors"}, {"digest": "blake3:0"}):
        bad = msgspec.structs.replace(good, checkpoint=msgspec.structs.replace(good.checkpoint, **changed))
        taken = own.take(first, bad, returned)
        assert taken is not None and taken.outcome is Outcome.STORAGE and taken.checkpoint is None
    assert not list(study.glob("checkpoints/trial-00000/*"))


def test_what_cannot_be_carried_halts_the_study_with_its_cure(study: Path, scratch: Path) -> None:
    own, first = CarriedFiles(study), request(study)
    gang = msgspec.structs.replace(first, gang=RankPlace(rank=0, size=2, local_rank=0, local_size=1, store="x"))
    encoded, _ = train_apart(encode_request(gang), apart(own.of(gang)), str(scratch))
    report = decode_report(encoded)
    assert report.outcome is Outcome.STORAGE and "Mount the home folder" in report.message
    large = Checkpoint("checkpoints/trial-00003/rung-0-attempt-1.safetensors", "blake3:0", 1, MOST_BYTES + 1)
    own.take(first, report, Returned())
    with pytest.raises(StorageError, match="Set checkpoints.folder to a URL"):
        own.of(request(study, 2, 3, large))
