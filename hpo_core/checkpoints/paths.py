"""Paths of an attempt's files: the one place that spells them."""

from __future__ import annotations

from hpo_core.model.stage import Further
from hpo_core.model.trial import Job

CHECKPOINTS = "checkpoints"
"""Folder of checkpoints within the study's folder, unless ``checkpoints.folder`` names another one."""
HOPS = "hops"
"""Folder of the states of models that hop, within the study's folder."""


GANGS = "gangs"
"""Folder of the files through which ranks of gangs find each other, within the study's folder."""


def attempt_name(trial: int, attempt: int) -> str:
    """The attempt's name in log files: ``trial-00007-attempt-3``."""
    return f"trial-{trial:05d}-attempt-{attempt}"


def log_path(trial: int, attempt: int, rank: int = 0) -> str:
    """Path of the attempt's log, relative to the study's folder; the ranks of a gang after the first have their own."""
    return f"logs/{attempt_name(trial, attempt)}{f'.rank-{rank}' if rank else ''}.log"


def gang_store_path(trial: int, attempt: int, token: str) -> str:
    """Path of the file through which the ranks of a gang find each other, relative to the study's folder."""
    return f"{GANGS}/{attempt_name(trial, attempt)}-{token}"


def checkpoint_path(job: Job, base: str = CHECKPOINTS) -> str:
    """Path of the job's checkpoint: relative to the study's folder, or a URL if ``base`` is one."""
    stage = job.stage
    place = "further" if type(stage) is Further else f"rung-{stage.rung}"
    return f"{base}/trial-{job.trial:05d}/{place}-attempt-{job.attempt}.safetensors"


def hop_path(trial: int, attempt: int, number: int) -> str:
    """Path of the state that a unit leaves for the next one, relative to the study's folder."""
    return f"{HOPS}/trial-{trial:05d}/attempt-{attempt}-unit-{number:06d}.safetensors"


def files_of_attempt(trial: int, attempt: int, base: str = CHECKPOINTS) -> str:
    """Glob pattern of the checkpoint files, complete or not, that an attempt may have written."""
    return f"{base}/trial-{trial:05d}/*-attempt-{attempt}.safetensors*"
