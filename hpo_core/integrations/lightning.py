"""Runs PyTorch Lightning under a trial handle: a callback that reports, saves and resumes, epoch by epoch.

::

    def train(trial):
        module = Net(**trial.params)
        trainer = pl.Trainer(
            max_epochs=27, callbacks=[TrialCallback(trial)], enable_checkpointing=False, logger=False
        )
        trainer.fit(module, data)
"""

from __future__ import annotations

import sys
from typing import Any

from hpo_core.integrations import (
    A_STEP_IS_AN_EPOCH,
    TO_MAX_RESOURCE,
    EpochSteps,
    is_of_library,
    named_by_class,
    refuse,
)
from hpo_core.training.handle import TrialHandle

if "pytorch_lightning" in sys.modules:  # both names may be installed, and their classes differ
    import pytorch_lightning as pl
else:
    try:
        import lightning.pytorch as pl
    except ImportError:
        try:
            import pytorch_lightning as pl
        except ImportError as error:
            raise ImportError(
                "hpo_core.integrations.lightning needs PyTorch Lightning: pip install 'hpo-core[lightning]'"
            ) from error


class TrialCallback(pl.Callback):  # type: ignore[misc]
    """Callback that trains exactly to the trial's target; one epoch is one step.

    ``max_epochs`` stays the length of a full training (``max_resource``), for schedules span it; where it is not set,
    it is the job's target. Every metric logged by the end of an epoch is reported under its own name. Module,
    optimizers, schedules, the precision's state (a gradient scaler), the loop's counters, and callbacks and the data
    module as far as they have a ``state_dict()`` of their own, are tracked, so they are saved as any trial's are; a
    trainer's own checkpoints are not needed. What else the module, a callback or the data module changes is not saved
    (``hpo check`` finds it). One process, or the ranks of a gang (``devices=trial.world_size, strategy="ddp"``);
    automatic or manual optimization.

    Raises (in ``fit``):
        ObjectiveError: the trainer has ``max_steps``, fewer epochs than the target, other processes than its gang, does
            not validate every epoch, or has a callback that a resumed job cannot continue (averages of weights) or that
            ends the training early.
    """

    def __init__(self, trial: TrialHandle) -> None:
        self._trial = trial
        self._epochs = EpochSteps(trial)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        loop, target, ranks = trainer.fit_loop, self._trial.target, self._trial.world_size
        if loop.max_epochs in (None, -1, _UNSET_EPOCHS):
            loop.max_epochs = target
        every, processes = trainer.check_val_every_n_epoch, f"{trainer.world_size} processes"
        alone = f"{processes}: train in one, with devices=1 (see strategy), or set training.gang of the study."
        gang = f'{processes} in a gang of {ranks}: give Trainer(devices=trial.world_size, strategy="ddp").'
        refuse(
            (trainer.max_steps != -1, f"max_steps = {trainer.max_steps}: {A_STEP_IS_AN_EPOCH}"),
            (trainer.world_size != ranks, gang if ranks > 1 else alone),
            (every not in (None, 1), f"check_val_every_n_epoch = {every}: metrics must be each epoch's own; use 1."),
            *(
                (isinstance(callback, kinds), f"{type(callback).__name__}: {message}")
                for callback in trainer.callbacks
                for kinds, message in _REFUSED
            ),
            (
                loop.max_epochs < target,
                f"max_epochs = {loop.max_epochs} is below the target {target}: {TO_MAX_RESOURCE}",
            ),
        )
        loop.min_epochs = 0  # else Lightning would train on when the target is reached
        self._warn(trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        objects: dict[str, Any] = {"module": pl_module, "progress": _LoopCounters(trainer.fit_loop)}
        objects |= {f"optimizer_{i}": optimizer for i, optimizer in enumerate(trainer.optimizers)}
        objects |= {f"schedule_{i}": config.scheduler for i, config in enumerate(trainer.lr_scheduler_configs)}
        if trainer.precision_plugin.state_dict():
            objects["precision"] = trainer.precision_plugin
        others = named_by_class(_others(trainer))
        objects |= {name: item for name, item in others.items() if _has_own(item, "state_dict")}
        trainer.should_stop = not self._epochs.begin(objects)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._trial.iteration()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._epochs.report(trainer.callback_metrics)
        if trainer.current_epoch + 1 >= self._trial.target:
            trainer.should_stop = True

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch > self._trial.resource:  # only now have the schedules made the last epoch's step
            self._epochs.next()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._epochs.report(trainer.callback_metrics)
        if trainer.current_epoch > self._trial.resource:
            self._epochs.next()

    def _warn(self, trainer: Any, pl_module: Any) -> None:
        for callback in trainer.callbacks:
            if isinstance(callback, pl.callbacks.ModelCheckpoint):
                self._trial.warn(
                    f"{type(callback).__name__}: its best value and list of files begin anew in each job. The study "
                    "keeps the checkpoints that count: enable_checkpointing=False."
                )
        for item in (pl_module, *_others(trainer)):
            if _has_own(item, "on_save_checkpoint"):
                self._trial.warn(
                    f"{type(item).__name__}.on_save_checkpoint is not called: what it saves is lost in a resumed job. "
                    "Keep it in a buffer of the module, or in an object with state_dict() and load_state_dict(), and "
                    "trial.track() that before fit."
                )


_UNSET_EPOCHS = 1000
"""Lightning's ``max_epochs`` where none was given."""
_AVERAGES = tuple(
    getattr(pl.callbacks, name)
    for name in ("StochasticWeightAveraging", "WeightAveraging")
    if hasattr(pl.callbacks, name)  # the latter came with Lightning 2.6
)
_REFUSED = (
    (
        _AVERAGES,
        "it keeps the averaged weights outside of what a trial saves, and swaps them in at the end of each job, so a "
        "resumed job would go on from other weights. Average in the module: self.average = "
        "torch.optim.swa_utils.AveragedModel(self.net), updated in on_train_batch_end, is saved with it.",
    ),
    (
        (pl.callbacks.EarlyStopping, pl.callbacks.Timer),
        "it ends the training before the target. Stopping bad trials early is the study's task; drop it.",
    ),
)


def _others(trainer: Any) -> list[Any]:
    libraries = ("lightning", "pytorch_lightning", "hpo_core")
    found = [item for item in trainer.callbacks if not is_of_library(item, *libraries)]
    return [*found, trainer.datamodule] if trainer.datamodule is not None else found


def _has_own(item: Any, method: str) -> bool:
    owner = next((kind for kind in type(item).__mro__ if method in vars(kind)), object)
    return owner.__module__.partition(".")[0] not in ("lightning", "pytorch_lightning", "torch", "builtins")


class _LoopCounters:
    """State of Lightning's loop counters, restored between two epochs."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def state_dict(self) -> dict[str, Any]:
        return dict(self._loop.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loop.load_state_dict(state)
        # Lightning takes a loaded state for one in the middle of a run and would not begin the data anew.
        self._loop.restarting = False
        self._loop.on_iteration_done()
