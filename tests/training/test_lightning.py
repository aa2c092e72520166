"""The Lightning callback with the real package: what a trial in pieces gives is what one in one go gives."""

from __future__ import annotations

import pytest
import torch

pl = pytest.importorskip("pytorch_lightning", reason="extra 'lightning' is not installed")

from hpo_core.integrations.lightning import TrialCallback  # noqa: E402
from hpo_core.model.trial import (  # noqa: E402
    Job,
    Outcome,
    Rung,
)
from hpo_core.training.attempt import run_attempt  # noqa: E402
from hpo_core.training.child.shared_progress import SharedProgress  # noqa: E402
from tests.job_requests import make_request  # noqa: E402

draws = torch.Generator().manual_seed(3)
DATA = torch.utils.data.TensorDataset(torch.randn(48, 4, generator=draws), torch.randn(48, 1, generator=draws))


class Net(pl.LightningModule):
    """Shuffling, dropout, batch statistics, Adam and two schedules: all that must survive."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        )

    def training_step(self, batch, _):
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "epoch"}}


def train(trial, **settings):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    module = Net(trial.params["rate"])
    callbacks = [*settings.pop("callbacks", ()), TrialCallback(trial)]
    trainer = pl.Trainer(
        callbacks=callbacks, enable_model_summary=False, default_root_dir=trial.folder, **quiet | settings
    )
    loaders = [torch.utils.data.DataLoader(DATA, batch_size=16, shuffle=shuffle) for shuffle in (True, False)]
    trainer.fit(module, *loaders)
    trial.report(steps=trainer.global_step)


def run(folder, target, after=None, function=train, progress=None):
    checkpoint = after.checkpoint if after is not None else None
    job = Job(5, target, Rung(0, 0), target, {"rate": 0.05}, checkpoint)
    request = make_request(job=job, metric="val_loss", seed=7, folder=str(folder))
    return run_attempt(function, request, progress)


def test_batches_are_counted_as_iterations(tmp_path):
    progress = SharedProgress()
    assert run(tmp_path, 2, progress=progress).outcome is Outcome.COMPLETED
    assert progress.figures().iterations == 2 * 3


def test_training_in_several_jobs_equals_training_in_one(tmp_path):
    straight = run(tmp_path / "one", 5)
    assert straight.outcome is Outcome.COMPLETED, straight.detail
    pieces = [run(tmp_path / "two", 1)]
    for target in (3, 5):
        pieces.append(run(tmp_path / "two", target, pieces[-1]))
        assert pieces[-1].outcome is Outcome.COMPLETED, pieces[-1].detail
    curve = [(p.resource, p.metrics["val_loss"], p.metrics["train_loss"]) for piece in pieces for p in piece.curve]
    assert curve == [(p.resource, p.metrics["val_loss"], p.metrics["train_loss"]) for p in straight.curve]
    assert [resource for resource, *_ in curve] == [1, 2, 3, 4, 5]
    assert pieces[-1].metrics == straight.metrics and straight.metrics["steps"] == 15


def test_a_job_whose_target_is_reached_trains_nothing(tmp_path):
    first = run(tmp_path, 2)
    again = run(tmp_path, 2, first)
    assert (again.outcome, again.checkpoint) == (Outcome.COMPLETED, first.checkpoint), again.detail
    assert again.metrics["val_loss"] == first.metrics["val_loss"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_steps": 3}, "max_steps = 3"),
        ({"check_val_every_n_epoch": 2}, "each epoch's own"),
        ({"max_epochs": 1}, "max_epochs = 1 is below the target 2"),
        ({"max_time": "00:00:10:00"}, "Timer: it ends the training before the target"),
    ],
)
def test_unsupported_trainer_settings_are_refused(tmp_path, settings, message):
    report = run(tmp_path, 2, function=lambda trial: train(trial, **settings))
    assert report.outcome is Outcome.ERROR and message in report.message


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (
            lambda: pl.callbacks.StochasticWeightAveraging(swa_lrs=0.01),
            "StochasticWeightAveraging: it keeps the averaged",
        ),
        (lambda: pl.callbacks.EMAWeightAveraging(), "EMAWeightAveraging: it keeps the averaged weights outside"),
        (lambda: pl.callbacks.EarlyStopping("val_loss"), "EarlyStopping: it ends the training before the target"),
    ],
)
def test_callbacks_that_a_resumed_job_cannot_continue_are_refused(tmp_path, callback, message):
    report = run(tmp_path, 2, function=lambda trial: train(trial, callbacks=[callback()]))
    assert report.outcome is Outcome.ERROR and message in report.message
    assert "trainer.fit(module, *loaders)" in report.detail and "site-packages" not in report.detail


def test_schedules_may_span_max_epochs_and_a_job_still_ends_at_its_target(tmp_path):
    report = run(tmp_path, 2, function=lambda trial: train(trial, max_epochs=9, min_epochs=5))
    assert report.outcome is Outcome.COMPLETED, report.detail
    assert report.metrics["steps"] == 6 and [point.resource for point in report.curve] == [1, 2]
