"""Runs PyTorch Lightning under a trial handle: a callback that reports, saves and resumes, epoch by epoch.

::

    def train(trial):
        module = Net(**trial.params)
        trainer = pl.Trainer(callbacks=[TrialCallback(trial)], enable_checkpointing=False, logger=False)
        trainer.fit(module, data)
"""

from __future__ import annotations

import sys
from typing import Any

from hpo_core.integrations.epochs import EpochSteps, refuse_if
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

    Every metric logged by the end of an epoch is reported under its own name. Module, optimizers, schedules, the
    precision's state (a gradient scaler) and the loop's counters are tracked, so they are saved as any trial's are;
    a trainer's own checkpoints are not needed. What else has a state (a loader, another callback) goes to
    ``trial.track()`` before ``fit``. One process, automatic or manual optimization.

    Raises (in ``fit``):
        ObjectiveError: the trainer has ``max_steps``, several processes, or does not validate every epoch.
    """

    def __init__(self, trial: TrialHandle) -> None:
        self._trial = trial
        self._epochs = EpochSteps(trial)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        refuse_if(
            trainer.max_steps != -1, f"max_steps = {trainer.max_steps}:", "a step of a trial is an epoch; drop it."
        )
        refuse_if(
            trainer.world_size > 1, f"{trainer.world_size} processes:", "train in one, with devices=1 (see strategy)."
        )
        every = trainer.check_val_every_n_epoch
        refuse_if(
            every not in (None, 1), f"check_val_every_n_epoch = {every}:", "metrics must be each epoch's own; use 1."
        )
        trainer.fit_loop.max_epochs = self._trial.target

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        objects: dict[str, Any] = {"module": pl_module, "progress": _LoopCounters(trainer.fit_loop)}
        objects |= {f"optimizer_{i}": optimizer for i, optimizer in enumerate(trainer.optimizers)}
        objects |= {f"schedule_{i}": config.scheduler for i, config in enumerate(trainer.lr_scheduler_configs)}
        if trainer.precision_plugin.state_dict():
            objects["precision"] = trainer.precision_plugin
        self._epochs.begin(**objects)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._epochs.report(trainer.callback_metrics)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch > self._trial.resource:  # only now have the schedules made the last epoch's step
            self._epochs.next()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._epochs.report(trainer.callback_metrics)
        if trainer.current_epoch > self._trial.resource:
            self._epochs.next()


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
