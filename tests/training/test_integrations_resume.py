"""``hpo check`` on Lightning and Hugging Face: exact where a trial saves all, found and named where it does not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from hpo_core.model.trial import Job, Rung
from hpo_core.training.resume_check import ResumeCheck, check_resume
from tests.job_requests import make_request

pytestmark = pytest.mark.slow

LIGHTNING = '''
import torch
import pytorch_lightning as pl
from torch.utils.data import DataLoader, TensorDataset
from hpo_core.integrations.lightning import TrialCallback

draws = torch.Generator().manual_seed(3)
DATA = TensorDataset(torch.randn(48, 4, generator=draws), torch.randn(48, 1, generator=draws))


class Noisy(torch.utils.data.Dataset):
    """Adds noise in the process that reads it: a worker."""

    def __len__(self):
        return len(DATA)

    def __getitem__(self, place):
        data, target = DATA[place]
        return data + torch.rand(4), target


class Net(pl.LightningModule):
    scale = 1.0

    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        self.layers = torch.nn.Sequential(*layers)

    def training_step(self, batch, _):
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]) * self.scale, batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.layers.parameters(), lr=0.05)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fit(trial, module=None, callbacks=(), loader=None, source=DATA, **settings):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = pl.Trainer(callbacks=[*callbacks, TrialCallback(trial)], enable_model_summary=False,
                         default_root_dir=trial.folder, **{"max_epochs": 9} | quiet | settings)
    trainer.fit(module or Net(), DataLoader(source, 16, shuffle=True, **loader or {}), DataLoader(DATA, 16))


class Plateau(Net):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.layers.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.3, threshold=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


def plateau(trial):
    fit(trial, Plateau())


class Shrinking(pl.Callback):
    """Makes the loss smaller by what it has counted; nobody is told of the count."""

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


def kept_callback(trial):
    fit(trial, callbacks=[Kept()])


def lost_callback(trial):
    fit(trial, callbacks=[Shrinking()])


class Hooked(Shrinking):
    def on_save_checkpoint(self, trainer, module, checkpoint):
        checkpoint["epochs"] = self.epochs

    def on_load_checkpoint(self, trainer, module, checkpoint):
        self.epochs = checkpoint["epochs"]


def lost_hook(trial):
    fit(trial, callbacks=[Hooked()])


def fresh_workers(trial):
    fit(trial, source=Noisy(), loader={"num_workers": 1})


'''

HUGGING_FACE = '''
import torch
import transformers
from transformers.trainer_callback import ExportableState
from hpo_core.integrations.huggingface import train_to_target

draws = torch.Generator().manual_seed(3)
ROWS = [
    {"input_ids": row, "attention_mask": torch.ones(6, dtype=torch.long), "labels": row.sum() % 2}
    for row in torch.randint(0, 50, (40, 6), generator=draws)
]


def fit(trial, callbacks=(), **settings):
    shape = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    configuration = transformers.BertConfig(**shape, intermediate_size=16, hidden_dropout_prob=0.2)
    settings = {"num_train_epochs": 5, "logging_strategy": "epoch", "lr_scheduler_type": "cosine"} | settings
    arguments = transformers.TrainingArguments(
        output_dir=str(trial.folder), seed=trial.seed, learning_rate=0.01, per_device_train_batch_size=8,
        eval_strategy="epoch", save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, **settings,
    )
    model = transformers.BertForSequenceClassification(configuration)
    train_to_target(trial, transformers.Trainer(
        model=model, args=arguments, train_dataset=ROWS, eval_dataset=ROWS, callbacks=list(callbacks)))


class Shrinking(transformers.TrainerCallback):
    """Makes the weights smaller by what it has counted; nobody is told of the count."""

    def __init__(self):
        self.epochs = 0

    def on_epoch_begin(self, args, state, control, model=None, **kwargs):
        self.epochs += 1
        with torch.no_grad():
            model.classifier.weight.mul_(1 / self.epochs)


class Kept(Shrinking, ExportableState):
    def state(self):
        return {"args": {}, "attributes": {"epochs": self.epochs}}


def kept_callback(trial):
    fit(trial, [Kept()])


def lost_callback(trial):
    fit(trial, [Shrinking()])
'''


def check(folder: Path, text: str, function: str) -> ResumeCheck:
    (folder / "looped.py").write_text(text)
    job = Job(5, 0, Rung(0, 0), 3, {})
    request = make_request(
        job=job, objective=f"looped:{function}", required="none", seed=7, folder="", pythonpath=(str(folder),)
    )
    return check_resume(request, folder / "check")


@pytest.mark.skipif(importlib.util.find_spec("pytorch_lightning") is None, reason="extra 'lightning' is not installed")
class TestLightning:
    @pytest.mark.parametrize("function", ["plateau", "kept_callback", "fresh_workers"])
    def test_what_a_trial_saves_resumes_to_the_bit_without_a_warning(self, tmp_path, function):
        found = check(tmp_path, LIGHTNING, function)
        assert found.exact and not found.warnings, (found.resumed, found.causes)
        assert {"module", "progress", "optimizer_0", "schedule_0"} <= set(found.tracked)

    def test_what_a_trial_does_not_save_differs(self, tmp_path):
        found = check(tmp_path, LIGHTNING, "lost_callback")
        assert not found.repeated and "module" in {difference.name for difference in found.resumed}
        assert "Something that the loop changes" in found.causes[0] and not found.by_target

    def test_a_hook_that_is_not_called_is_named(self, tmp_path):
        found = check(tmp_path, LIGHTNING, "lost_hook")
        assert "module" in {difference.name for difference in found.resumed}
        assert any("Hooked.on_save_checkpoint is not called" in line for line in found.warnings), found.warnings


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="extra 'huggingface' is not installed")
class TestHuggingFace:
    def test_what_a_trial_saves_resumes_to_the_bit_without_a_warning(self, tmp_path):
        found = check(tmp_path, HUGGING_FACE, "kept_callback")
        assert found.exact and not found.warnings, (found.resumed, found.causes)
        assert {"model", "optimizer", "schedule"} <= set(found.tracked)

    def test_what_a_trial_does_not_save_differs(self, tmp_path):
        found = check(tmp_path, HUGGING_FACE, "lost_callback")
        assert not found.repeated and "model" in {difference.name for difference in found.resumed}
        assert "Something that the loop changes" in found.causes[0]
