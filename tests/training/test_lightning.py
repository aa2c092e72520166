"""The Lightning callback with the real package: what a trial in pieces gives is what one in one go gives."""

from __future__ import annotations

from pathlib import Path

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
from hpo_core.training.resume_check import check_resume  # noqa: E402
from tests.job_requests import make_request  # noqa: E402

draws = torch.Generator().manual_seed(3)
DATA = torch.utils.data.TensorDataset(torch.randn(48, 4, generator=draws), torch.randn(48, 1, generator=draws))


class Net(pl.LightningModule):
    """Shuffling, dropout, batch statistics, Adam and two schedules: all that must survive."""

    scale = 1.0

    def __init__(self, rate):
        super().__init__()
        self.rate = rate
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        )

    def training_step(self, batch, _):
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]) * self.scale, batch[1])
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "epoch"}}


class Plateau(Net):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.rate)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.3, threshold=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


class Shrinking(pl.Callback):
    """Makes the loss smaller by the epochs that it has counted."""

    def __init__(self):
        self.epochs = 0

    def on_train_epoch_start(self, trainer, module):
        module.scale = 1 / (1 + self.epochs)
        self.epochs += 1


class Kept(Shrinking):
    def state_dict(self):
        return {"epochs": self.epochs}

    def load_state_dict(self, state):
        self.epochs = state["epochs"]


class Hooked(Shrinking):
    def on_save_checkpoint(self, trainer, module, checkpoint):
        checkpoint["epochs"] = self.epochs


class Noisy(torch.utils.data.Dataset):
    """Adds noise in the process that reads it: a worker."""

    def __len__(self):
        return len(DATA)

    def __getitem__(self, place):
        data, target = DATA[place]
        return data + torch.rand(4), target


def train(trial, module=Net, callbacks=(), source=DATA, workers=0, counts=True, **settings):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = pl.Trainer(
        callbacks=[*(make() for make in callbacks), TrialCallback(trial)],
        enable_model_summary=False,
        default_root_dir=trial.folder,
        **quiet | settings,
    )
    loaders = [
        torch.utils.data.DataLoader(source, batch_size=16, shuffle=True, num_workers=workers),
        torch.utils.data.DataLoader(DATA, batch_size=16),
    ]
    trainer.fit(module(trial.params["rate"]), *loaders)
    if counts:
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


@pytest.mark.parametrize(
    "settings", [{}, {"module": Plateau}, {"callbacks": [Kept]}, {"source": Noisy(), "workers": 1}]
)
def test_training_in_several_jobs_equals_training_in_one(tmp_path, settings):
    def made(trial):
        train(trial, **settings)

    straight = run(tmp_path / "one", 5, function=made)
    assert straight.outcome is Outcome.COMPLETED, straight.detail
    assert not straight.warnings
    pieces = [run(tmp_path / "two", 1, function=made)]
    for target in (3, 5):
        pieces.append(run(tmp_path / "two", target, pieces[-1], made))
        assert pieces[-1].outcome is Outcome.COMPLETED, pieces[-1].detail
    curve = [(p.resource, p.metrics["val_loss"], p.metrics["train_loss"]) for piece in pieces for p in piece.curve]
    assert curve == [(p.resource, p.metrics["val_loss"], p.metrics["train_loss"]) for p in straight.curve]
    assert [resource for resource, *_ in curve] == [1, 2, 3, 4, 5]
    assert pieces[-1].metrics == straight.metrics and straight.metrics["steps"] == 15


def loses(trial):
    train(trial, callbacks=[Shrinking], counts=False, max_epochs=9)


@pytest.mark.slow
def test_what_a_callback_does_not_save_is_found_by_hpo_check(tmp_path):
    job = Job(5, 0, Rung(0, 0), 3, {"rate": 0.05})
    where = (str(Path(__file__).parents[2]),)
    request = make_request(job=job, objective=f"{__name__}:loses", required="none", seed=7, folder="", pythonpath=where)
    found = check_resume(request, tmp_path / "check")
    assert not found.repeated and "module" in {difference.name for difference in found.resumed}
    assert "Something that the loop changes" in found.causes[0] and not found.by_target


def test_a_hook_that_is_not_called_is_named(tmp_path):
    report = run(tmp_path, 1, function=lambda trial: train(trial, callbacks=[Hooked]))
    assert any("Hooked.on_save_checkpoint is not called" in line for line in report.warnings), report


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
    report = run(tmp_path, 2, function=lambda trial: train(trial, callbacks=[callback]))
    assert report.outcome is Outcome.ERROR and message in report.message
    assert "trainer.fit(module(trial.params" in report.detail and "site-packages" not in report.detail


def test_schedules_may_span_max_epochs_and_a_job_still_ends_at_its_target(tmp_path):
    report = run(tmp_path, 2, function=lambda trial: train(trial, max_epochs=9, min_epochs=5))
    assert report.outcome is Outcome.COMPLETED, report.detail
    assert report.metrics["steps"] == 6 and [point.resource for point in report.curve] == [1, 2]
