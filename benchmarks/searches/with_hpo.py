"""The search here: two processes, promotion ASHA."""

import sys

from digits import EPOCHS, ETA, SEED, TRIALS, WORKERS, build, loss_of, say, train_one_epoch

import hpo_core as hpo


# begin
def train(trial):
    model, optimizer = build(**trial.params)
    trial.track(model=model, optimizer=optimizer)
    for _ in trial.steps():
        trial.report(val_loss=train_one_epoch(model, optimizer))


if __name__ == "__main__":
    result = hpo.tune(
        train,
        space={
            "learning_rate": hpo.Float(1e-3, 1, log=True),
            "width": hpo.Int(8, 128, log=True),
            "momentum": hpo.Float(0, 0.99),
        },
        metric="val_loss",
        method=hpo.Asha(configs=TRIALS, max_resource=EPOCHS, reduction_factor=ETA),
        workers=WORKERS,
        seed=SEED,
        **(
            {"home": None} if "--nothing-kept" in sys.argv else {"prefect": "off"} if "--no-prefect" in sys.argv else {}
        ),
    )
    weights = result.best.state()["model"]
    # end
    say(
        version=hpo.__version__,
        best=result.best.value,
        loaded=loss_of(weights, **result.best.params),
        trials=len(result.trials),
        results=len(result.results),
        attempts=len(result.jobs),
    )
