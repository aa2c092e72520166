"""Specifications of a retraining's studies: one configuration with several seeds, or a new search."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpo_core.model.errors import HpoError, SpecError, StorageError
from hpo_core.model.events import Entry
from hpo_core.model.rng import derive_seed
from hpo_core.replay.rerun import rerun_spec
from hpo_core.spec import StudySpec
from hpo_core.spec.data import DATA_PARAMETER
from hpo_core.study import Study
from hpo_core.training.evaluation import TrainedModel


def repeats_spec(
    entries: Sequence[Entry], name: str, *, trial: int, repeats: int, changes: Mapping[str, Any]
) -> StudySpec:
    """A study that trains one trial (and its ancestors) again along its recorded jobs, ``repeats`` times.

    Every repeat has its own training seeds, derived from ``name``: the recorded seeds belong to a training that was
    selected for its result, and would bias the test. Each is a trial of its own with one model, whatever the study's
    setting ``repeats`` says. :func:`trials_of_repeats` gives the repeats' trial numbers.

    Args:
        entries: journal of the study that has the trial.
        name: of the new study.
        changes: parameters set in every trial, such as the data.

    Raises:
        SpecError: the study has no such trial or granted it nothing.
    """
    once = rerun_spec(entries, name, trials=[trial], changes=changes).plain()
    recorded = once["search"]["study_record"]
    numbers = recorded["numbers"]
    stride = 1 + max(numbers)
    many = {  # interleaved: repeats of a chain of ancestors train side by side
        "grants": [
            grant
            | {
                key: grant[key] * repeats + repeat
                for key in ("trial", "parent", "initiator", "opponent")
                if grant.get(key) is not None
            }
            for grant in recorded["grants"]
            for repeat in range(repeats)
        ],
        "params": [params for params in recorded["params"] for _ in range(repeats)],
        "numbers": [number + repeat * stride for number in numbers for repeat in range(repeats)],
        "keep_last": True,
    }
    if recorded["visits"]:
        many["visits"] = [orders for orders in recorded["visits"] for _ in range(repeats)]
    seed = derive_seed(once["seed"], f"repeats/{name}", 0)
    search = once["search"] | {"study_record": recorded | many}
    return StudySpec.from_journal(once | {"search": search, "seed": seed, "repeats": 1}, "repeats")


def trials_of_repeats(spec: StudySpec, repeats: int) -> list[int]:
    """Trial numbers of the repeats in a study made by :func:`repeats_spec`, one per repeat.

    Raises:
        SpecError: the study was not made for that number of repeats.
    """
    record = spec.search.record()
    if record is None or len(record.params) % repeats:
        raise SpecError(f"Study {spec.study!r} does not hold {repeats} repeats of one trial.")
    return list(range(len(record.params) - repeats, len(record.params)))


def trained_models(study: Study, trials: Sequence[int], folder: str) -> list[TrainedModel]:
    """The models of the repeats, by their trial numbers, for an evaluation.

    Args:
        folder: of the study.

    Raises:
        HpoError: a repeat has no result with a checkpoint.
    """
    spec, models = study.spec, []
    for number in trials:
        trial = study.state.trials[number]
        checkpoint = trial.checkpoint()
        finite = bool(trial.results) and trial.results[-1].loss is not None and not trial.infeasible
        if not finite or checkpoint is None or checkpoint.resource != trial.resource:
            raise HpoError(
                f"Study {study.name!r}: repeat {number} has no finite, feasible result with a checkpoint "
                f"({trial.status}); nothing was changed. `hpo show {study.name} --trial {number}` says why; training "
                "functions must track their model (trial.track). Started again, all is trained anew."
            )
        models.append(
            TrainedModel(
                number,
                spec.constants | trial.params,
                spec.training_seed(number),
                folder=folder,
                checkpoint=checkpoint,
                base=spec.checkpoint_base,
            )
        )
    return models


def tuning_spec(source: StudySpec, name: str, *, data: str, studies: Sequence[str], key: str) -> StudySpec:
    """The search of ``source`` on other data, warm-started from earlier studies (a grid search: repeated).

    Args:
        studies: earlier studies, newest first.
        key: text that the new study's seed is derived from, such as the fingerprint of the data.
    """
    plain = source.plain()
    fixed = {"type": "categorical", "choices": [data]}
    seed = derive_seed(source.seed, f"retrain/{key}", 0)
    warm = None if source.search.outline().own_configurations else {"studies": list(studies)}
    changed = {
        "study": name,
        "space": plain["space"] | {DATA_PARAMETER: fixed},
        "start_with": [],  # the earlier studies' incumbents are tried first
        "constants": {one: value for one, value in source.constants.items() if one != DATA_PARAMETER},
        "seed": seed,
        "warm_start": warm,
    }
    return StudySpec.from_journal(plain | changed, "tuning")


def fingerprint(data: str) -> str:
    """SHA-256 of a file or folder (relative paths and bytes); of the text itself for anything else.

    Links are followed. A name of changing content (a table, a URL) must contain a version, for its content is not read.

    Raises:
        StorageError: a file cannot be read, or a folder leads back into itself.
    """
    path = Path(data)
    digest = hashlib.sha256()
    try:
        if path.is_dir():
            for file in sorted(_files(path, ())):
                digest.update(b"\0" + file.relative_to(path).as_posix().encode() + b"\0")
                _add(file, digest)
        elif path.is_file():
            _add(path, digest)
        else:
            digest.update(b"name\0" + data.encode())
    except OSError as error:
        raise StorageError(f"Data {data!r} cannot be read ({error}). Check the path and its permissions.") from None
    return digest.hexdigest()


def absolute_path(data: str) -> str:
    """The absolute path of a file or folder, for processes with another working folder; other names stay."""
    path = Path(data)
    return str(path.resolve()) if path.exists() else data


def _files(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    real = folder.resolve()
    if real in above:
        raise StorageError(f"Data folder {folder} leads back into itself (to {real}). Remove that link.")
    for item in folder.iterdir():
        if item.is_dir():
            yield from _files(item, (*above, real))
        elif item.is_file():
            yield item


def _add(file: Path, digest: hashlib._Hash) -> None:
    digest.update(file.stat().st_size.to_bytes(8, "little"))
    with file.open("rb") as stream:
        hashlib.file_digest(stream, lambda: digest)
