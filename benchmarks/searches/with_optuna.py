"""The search in Optuna: two threads, its successive halving, a database; checkpoints by hand."""

import optuna
import torch
from digits import EPOCHS, ETA, SEED, TRIALS, WORKERS, build, loss_of, say, train_one_epoch


# begin
def objective(trial):
    params = {
        "learning_rate": trial.suggest_float("learning_rate", 1e-3, 1, log=True),
        "width": trial.suggest_int("width", 8, 128, log=True),
        "momentum": trial.suggest_float("momentum", 0, 0.99),
    }
    model, optimizer = build(**params)
    for epoch in range(1, EPOCHS + 1):
        loss = train_one_epoch(model, optimizer)
        trial.report(loss, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    torch.save(model.state_dict(), f"trial-{trial.number}.pt")
    return loss


study = optuna.create_study(
    study_name="digits",
    storage="sqlite:///optuna.db",
    sampler=optuna.samplers.RandomSampler(seed=SEED),
    pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=ETA),
)
study.optimize(objective, n_trials=TRIALS, n_jobs=WORKERS)
weights = torch.load(f"trial-{study.best_trial.number}.pt")
# end

trials = study.trials_dataframe()
say(
    version=optuna.__version__,
    best=study.best_value,
    loaded=loss_of(weights, **study.best_params),
    trials=len(trials),
    results=sum(len(trial.intermediate_values) for trial in study.trials),
    attempts=0,
)
