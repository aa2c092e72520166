"""The study of ``study.yaml`` in Python: ``python -m examples.digits.tune``."""

import hpo_core as hpo
from examples.digits.train import train

if __name__ == "__main__":
    result = hpo.tune(
        train,
        space={
            "learning_rate": hpo.Float(1e-4, 1, log=True),
            "width": hpo.Int(8, 256, log=True),
            "dropout": hpo.Float(0, 0.6),
            "weight_decay": hpo.Float(1e-6, 1e-2, log=True),
            "batch_size": hpo.Choice(16, 32, 64, 128, type="ordinal"),
            "optimizer": hpo.Choice("sgd", "adam"),
            "momentum": hpo.Float(0, 0.99, when={"optimizer": "sgd"}),
        },
        metric="val_loss",
        method=hpo.Asha(configs=60, min_resource=1, max_resource=27, reduction_factor=3),
        workers=2,
        seed=1,
        name="digits",
        resume=True,  # started again, it goes on
    )
    print(result.best)
