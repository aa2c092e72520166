"""The search in Ray Tune: two processes, its asynchronous successive halving, checkpoints that it manages."""

import os
import tempfile
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray  # noqa: E402
import torch  # noqa: E402
from digits import EPOCHS, ETA, TRIALS, WORKERS, build, loss_of, say, train_one_epoch  # noqa: E402
from ray import tune  # noqa: E402

ray.init(
    num_cpus=WORKERS,
    include_dashboard=False,
    log_to_driver=False,
    runtime_env={"env_vars": {"PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}},  # noqa: PTH100, PTH120
)


# begin
def train(config):
    model, optimizer = build(**config)
    first = 1
    if (checkpoint := tune.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / "state.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1
    for epoch in range(first, EPOCHS + 1):
        loss = train_one_epoch(model, optimizer)
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, Path(folder) / "state.pt")
            tune.report({"val_loss": loss}, checkpoint=tune.Checkpoint.from_directory(folder))


results = tune.Tuner(
    train,
    param_space={
        "learning_rate": tune.loguniform(1e-3, 1),
        "width": tune.lograndint(8, 129),
        "momentum": tune.uniform(0, 0.99),
    },
    tune_config=tune.TuneConfig(
        metric="val_loss",
        mode="min",
        num_samples=TRIALS,
        max_concurrent_trials=WORKERS,
        scheduler=tune.schedulers.ASHAScheduler(max_t=EPOCHS, grace_period=1, reduction_factor=ETA),
    ),
    run_config=tune.RunConfig(
        name="digits",
        storage_path=str(Path.cwd() / "ray"),
        checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        verbose=0,
    ),
).fit()
best = results.get_best_result()
with best.checkpoint.as_directory() as folder:
    weights = torch.load(Path(folder) / "state.pt")["model"]
# end

say(
    version=ray.__version__,
    best=best.metrics["val_loss"],
    loaded=loss_of(weights, **best.config),
    trials=len(results.get_dataframe()),
    results=sum(len(result.metrics_dataframe) for result in results),
    attempts=0,
)
ray.shutdown()
