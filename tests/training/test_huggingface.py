"""Hugging Face's Trainer with the real package: what a trial in pieces gives is what one in one go gives."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="extra 'huggingface' is not installed")
pytest.importorskip("accelerate", reason="extra 'huggingface' is not installed")

from transformers.trainer_callback import ExportableState  # noqa: E402

from hpo_core.integrations.huggingface import train_to_target  # noqa: E402
from hpo_core.model.trial import (  # noqa: E402
    Job,
    Outcome,
    Rung,
)
from hpo_core.training.attempt import run_attempt  # noqa: E402
from hpo_core.training.child.shared_progress import SharedProgress  # noqa: E402
from tests.job_requests import make_request  # noqa: E402

draws = torch.Generator().manual_seed(3)
ROWS = [
    {"input_ids": row, "attention_mask": torch.ones(6, dtype=torch.long), "labels": row.sum() % 2}
    for row in torch.randint(0, 50, (24, 6), generator=draws)
]


class Shrinking(transformers.TrainerCallback, ExportableState):
    """Makes the weights smaller by the epochs that it has counted."""

    def __init__(self, epochs=0):
        self.epochs = epochs

    def on_epoch_begin(self, args, state, control, model=None, **kwargs):
        self.epochs += 1
        with torch.no_grad():
            model.classifier.weight.mul_(1 / self.epochs)

    def state(self):
        return {"args": {}, "attributes": {"epochs": self.epochs}}


def train(trial, callbacks=(), compute_metrics=None, **settings):
    shape = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    configuration = transformers.BertConfig(**shape, intermediate_size=16, hidden_dropout_prob=0.2)
    arguments = transformers.TrainingArguments(
        output_dir=str(trial.folder),
        seed=trial.seed,
        learning_rate=trial.params["rate"],
        per_device_train_batch_size=8,
        eval_strategy="epoch",
        logging_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **{"num_train_epochs": 5} | settings,
    )
    model = transformers.BertForSequenceClassification(configuration)
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=ROWS,
        eval_dataset=ROWS,
        callbacks=list(callbacks),
        compute_metrics=compute_metrics,
    )
    train_to_target(trial, trainer)
    trial.report(steps=trainer.state.global_step)


def run(folder, target, after=None, function=train, progress=None):
    checkpoint = after.checkpoint if after is not None else None
    job = Job(5, target, Rung(0, 0), target, {"rate": 0.01}, checkpoint)
    request = make_request(job=job, metric="eval_loss", seed=7, folder=str(folder))
    return run_attempt(function, request, progress)


def curve(report):
    return [(p.resource, p.metrics["eval_loss"], p.metrics["loss"], p.metrics["learning_rate"]) for p in report.curve]


def test_optimizer_steps_are_counted_as_iterations(tmp_path):
    progress = SharedProgress()
    assert run(tmp_path, 2, progress=progress).outcome is Outcome.COMPLETED
    assert progress.figures().iterations == 2 * 3


def test_own_metrics_are_reported_whatever_their_names_end_in(tmp_path):
    report = run(tmp_path, 1, function=lambda trial: train(trial, compute_metrics=lambda _: {"best_epoch": 3.0}))
    assert report.metrics["eval_best_epoch"] == 3.0
    assert "epoch" not in report.metrics and "eval_runtime" not in report.metrics


@pytest.mark.parametrize("callbacks", [(), (Shrinking,)])
def test_training_in_several_jobs_equals_training_in_one(tmp_path, callbacks):
    def made(trial):
        train(trial, [make() for make in callbacks], lr_scheduler_type="cosine")

    straight = run(tmp_path / "one", 5, function=made)
    assert straight.outcome is Outcome.COMPLETED, straight.detail
    assert not straight.warnings
    pieces = [run(tmp_path / "two", 1, function=made)]
    for target in (3, 5):
        pieces.append(run(tmp_path / "two", target, pieces[-1], made))
        assert pieces[-1].outcome is Outcome.COMPLETED, pieces[-1].detail
    together = [point for piece in pieces for point in curve(piece)]
    assert together == curve(straight) and [resource for resource, *_ in together] == [1, 2, 3, 4, 5]
    assert pieces[-1].metrics["eval_loss"] == straight.metrics["eval_loss"] and straight.metrics["steps"] == 15
    assert not list((tmp_path / "two").rglob("trainer_state.json"))


@pytest.mark.parametrize(
    ("settings", "message"), [({"max_steps": 3}, "max_steps = 3"), ({"num_train_epochs": 1}, "below the target 2")]
)
def test_unsupported_trainer_settings_are_refused(tmp_path, settings, message):
    report = run(tmp_path, 2, function=lambda trial: train(trial, **settings))
    assert report.outcome is Outcome.ERROR and message in report.message


def test_early_stopping_is_refused(tmp_path):
    early = transformers.EarlyStoppingCallback()
    report = run(tmp_path, 2, function=lambda trial: train(trial, [early], metric_for_best_model="eval_loss"))
    assert report.outcome is Outcome.ERROR and "EarlyStoppingCallback: it ends the training" in report.message
