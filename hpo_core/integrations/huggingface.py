"""Runs Hugging Face's Trainer under a trial handle: reports, saves and resumes, epoch by epoch.

::

    def train(trial):
        arguments = TrainingArguments(
            output_dir=trial.folder, num_train_epochs=27, seed=trial.seed, eval_strategy="epoch", save_strategy="no",
            report_to="none", disable_tqdm=True, learning_rate=trial.params["learning_rate"],
        )
        train_to_target(trial, Trainer(model=build(trial.params), args=arguments, ...))
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
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

try:
    from transformers import EarlyStoppingCallback, TrainerCallback, TrainerState
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError(
        "hpo_core.integrations.huggingface needs transformers and accelerate: pip install 'hpo-core[huggingface]'"
    ) from error

_SPEED_METRICS = ("_runtime", "_per_second", "_flops", "_flos")
_LIBRARIES = ("transformers", "hpo_core")
_LOGGED_METRICS = ("loss", "grad_norm", "learning_rate")


def train_to_target(trial: TrialHandle, trainer: Any) -> None:
    """Run ``trainer.train()`` from the trial's resource to its target; one epoch is one step.

    ``num_train_epochs`` stays the length of a full training (``max_resource``), for the trainer's learning rate
    schedule spans it; the callback ends the training at the target. Metrics of each evaluation are reported
    (``eval_loss``, ...), and the last logged ``loss``, ``grad_norm`` and ``learning_rate``. Model, optimizer,
    schedule, gradient scaler, and callbacks that are an ``ExportableState`` of transformers are tracked; the trainer's
    own checkpoints are not needed (``save_strategy="no"``). What other callbacks change, and what workers of a loader
    keep, is not saved (``hpo check`` finds it). One process, or the ranks of a gang, which Accelerate finds by itself.

    Raises:
        ObjectiveError: the trainer has ``max_steps``, fewer epochs than the target, other processes than its gang, or a
            callback that ends the training early.
    """
    arguments = trainer.args
    callbacks, processes = trainer.callback_handler.callbacks, arguments.world_size
    refuse(
        (arguments.max_steps > 0, f"max_steps = {arguments.max_steps}: {A_STEP_IS_AN_EPOCH}"),
        (
            arguments.num_train_epochs < trial.target,
            f"num_train_epochs = {arguments.num_train_epochs} is below the target {trial.target}: {TO_MAX_RESOURCE}",
        ),
        (
            processes != trial.world_size,
            f"{processes} processes, and the trial has {trial.world_size} (training.gang of the study): make "
            "TrainingArguments within the training function.",
        ),
        (
            arguments.load_best_model_at_end,
            "load_best_model_at_end: the trial's state is the last epoch's; drop it.",
        ),
        (
            any(isinstance(callback, EarlyStoppingCallback) for callback in callbacks),
            "EarlyStoppingCallback: it ends the training before the target. Stopping is the study's task; drop it.",
        ),
    )
    trainer.add_callback(EpochCallback(trial, trainer))
    if trial.resource == 0:
        trainer.train()
        return
    folder = Path(trial.folder) / "resume"
    if trial.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    trainer.save_model(str(folder))  # the trainer wants a file there; the callback restores what counts
    updates = math.ceil(len(trainer.get_train_dataloader()) / arguments.gradient_accumulation_steps)
    state = TrainerState(global_step=trial.resource * updates, epoch=float(trial.resource))
    state.train_batch_size = arguments.train_batch_size
    state.compute_steps(arguments, math.ceil(arguments.num_train_epochs * updates))
    if trial.rank == 0:
        state.save_to_json(str(folder / "trainer_state.json"))
    trainer.accelerator.wait_for_everyone()
    try:
        trainer.train(resume_from_checkpoint=str(folder))
    finally:
        if trial.rank == 0:  # the others have read it: they trained on together
            shutil.rmtree(folder, ignore_errors=True)


class EpochCallback(TrainerCallback):  # type: ignore[misc]
    """The callback that :func:`train_to_target` adds to the trainer."""

    def __init__(self, trial: TrialHandle, trainer: Any) -> None:
        self._trial = trial
        self._trainer = trainer
        self._epochs = EpochSteps(trial)

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        optimizer = objects["optimizer"]
        optimizer = getattr(optimizer, "optimizer", optimizer)  # without accelerate's wrapper
        tracked = {"model": objects["model"], "optimizer": optimizer, "schedule": objects["lr_scheduler"]}
        if (scaler := getattr(self._trainer.accelerator, "scaler", None)) is not None:  # of float16
            tracked["scaler"] = scaler
        callbacks = [item for item in self._trainer.callback_handler.callbacks if not is_of_library(item, *_LIBRARIES)]
        stateful = [item for item in callbacks if isinstance(item, ExportableState)]
        tracked |= {name: _Exported(item) for name, item in named_by_class(stateful).items()}
        control.should_training_stop = not self._epochs.begin(tracked)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if state.epoch is not None and round(state.epoch) > self._trial.resource:
            self._epochs.next()  # what follows the end of an epoch (evaluation, a schedule that looks at it) is done

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._trial.iteration()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if round(state.epoch) >= self._trial.target:
            control.should_training_stop = True

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, Any], **objects: Any) -> None:
        shown = {name: value for name, value in metrics.items() if not name.endswith(_SPEED_METRICS)}
        self._epochs.report({name: value for name, value in shown.items() if name != "epoch"})

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **objects: Any) -> None:
        self._epochs.report({name: logs[name] for name in _LOGGED_METRICS if name in logs})

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if round(state.epoch) > self._trial.resource:
            self._epochs.next()


class _Exported:
    """State of a callback that exports it as transformers' own checkpoints want it."""

    def __init__(self, callback: Any) -> None:
        self._callback = callback

    def state_dict(self) -> dict[str, Any]:
        return dict(self._callback.state()["attributes"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self._callback, name, value)
