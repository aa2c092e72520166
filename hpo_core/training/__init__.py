"""Training: what a training function sees, and the child processes it runs in. Nothing here imports torch."""

from hpo_core.training.child.trainer import Trainer
from hpo_core.training.handle import TrialHandle
from hpo_core.training.request import JobRequest, decode_report, decode_request, encode_report, encode_request
from hpo_core.training.worker import cancel_job, close_all, prepare_worker, train_job

__all__ = [
    "JobRequest",
    "Trainer",
    "TrialHandle",
    "cancel_job",
    "close_all",
    "decode_report",
    "decode_request",
    "encode_report",
    "encode_request",
    "prepare_worker",
    "train_job",
]
