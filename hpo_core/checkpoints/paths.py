"""Where the files of an attempt lie: one spelling for the trainer, the simulator and whoever removes them."""

from __future__ import annotations

from hpo_core.model.stage import FURTHER
from hpo_core.model.trial import Job

CHECKPOINTS = "checkpoints"
"""Folder of a study's checkpoints below its own, unless ``checkpoints.storage`` names another place."""


def attempt_name(trial: int, attempt: int) -> str:
    """The attempt's name in log files: ``trial-00007-attempt-3``."""
    return f"trial-{trial:05d}-attempt-{attempt}"


def log_path(trial: int, attempt: int) -> str:
    """Where the attempt's output goes, relative to the study's folder."""
    return f"logs/{attempt_name(trial, attempt)}.log"


def checkpoint_path(job: Job, base: str = CHECKPOINTS) -> str:
    """Where the job's checkpoint goes, relative to the study's folder, or a URL."""
    place = "further" if job.rung == FURTHER else f"rung-{job.rung}"
    return f"{base}/trial-{job.trial:05d}/{place}-attempt-{job.attempt}.safetensors"


def files_of_attempt(trial: int, attempt: int, base: str = CHECKPOINTS) -> str:
    """Pattern of the checkpoint files, whole or begun, that an attempt may have written."""
    return f"{base}/trial-{trial:05d}/*-attempt-{attempt}.safetensors*"
