"""Training functions of Lightning and of Hugging Face's Trainer, which make their own process groups of a gang."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

DRAWN = torch.Generator().manual_seed(1)
X = torch.randn(64, 8, generator=DRAWN)
Y = (X[:, 0] > 0).long()
BATCH = 16


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def train_with_lightning(trial: Any) -> None:
    import lightning.pytorch as pl

    from hpo_core.integrations.lightning import TrialCallback

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, place: int) -> Any:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, place: int) -> None:
            self.log("loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=trial.params["lr"])

    gang = {"devices": trial.world_size, "strategy": "ddp" if trial.world_size > 1 else "auto"}
    if trial.params.get("alone"):
        gang = {"devices": 1}
    trainer = pl.Trainer(
        accelerator="cpu", **gang, max_epochs=4, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, callbacks=[TrialCallback(trial)],
    )  # fmt: skip
    data = torch.utils.data.TensorDataset(X, Y)
    size = BATCH // trial.world_size
    trainer.fit(
        Net(),
        torch.utils.data.DataLoader(data, batch_size=size, shuffle=True),
        torch.utils.data.DataLoader(data, batch_size=size),
    )


def train_with_huggingface(trial: Any) -> None:
    from transformers import Trainer, TrainingArguments

    from hpo_core.integrations.huggingface import train_to_target

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Any = None, labels: Any = None) -> Any:
            out = self.net(x)
            return {"loss": nn.functional.cross_entropy(out, labels), "logits": out}

    data = [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]
    arguments = TrainingArguments(
        output_dir=str(trial.folder), num_train_epochs=4, seed=trial.seed, eval_strategy="epoch", save_strategy="no",
        report_to="none", disable_tqdm=True, learning_rate=trial.params["lr"], use_cpu=True,
        per_device_train_batch_size=BATCH // trial.world_size,
    )  # fmt: skip
    train_to_target(trial, Trainer(model=Net(), args=arguments, train_dataset=data, eval_dataset=data))
