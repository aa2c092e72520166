"""Tables of real trainings, made here: small networks and boosting on scikit-learn's own data sets.

    python benchmarks/sampling/trained.py --out FOLDER [--minutes 15] [--rows 600]

Each table is a file in the format of the given curve tables: rows drawn at random (seeded) from the space, loss on
held out data after each unit of training, and the processor seconds that the training took. Units are epochs of
networks and trees of boosting. Losses are the same for the same versions of the libraries; times are this machine's. A
table that is there is left alone; one that does not get ready in its share of ``--minutes`` keeps the rows it has. A
search of the benchmark tries some 170 rows: on a table that it tries whole, samplers differ in the order of rows alone.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from sklearn import datasets
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler

UNITS, LEAST_ROWS = 27, 30
NETWORK = {
    "learning_rate": {"type": "float", "lower": 1e-4, "upper": 1.0, "log": True},
    "alpha": {"type": "float", "lower": 1e-6, "upper": 1.0, "log": True},
    "batch_size": {"type": "int", "lower": 8, "upper": 256, "log": True},
    "width": {"type": "int", "lower": 2, "upper": 64, "log": True},
    "momentum": {"type": "float", "lower": 0.0, "upper": 0.99},
    "solver": {"type": "categorical", "choices": ["sgd", "adam"]},
}
BOOSTING = {
    "learning_rate": {"type": "float", "lower": 0.01, "upper": 2.0, "log": True},
    "depth": {"type": "int", "lower": 1, "upper": 8},
    "leaf": {"type": "int", "lower": 1, "upper": 64, "log": True},
    "subsample": {"type": "float", "lower": 0.2, "upper": 1.0},
    "features": {"type": "float", "lower": 0.1, "upper": 1.0},
}
LINEAR = {
    "learning_rate": {"type": "float", "lower": 1e-4, "upper": 10.0, "log": True},
    "alpha": {"type": "float", "lower": 1e-7, "upper": 0.1, "log": True},
    "penalty": {"type": "categorical", "choices": ["l1", "l2", "elasticnet"]},
    "schedule": {"type": "categorical", "choices": ["constant", "invscaling"]},
    "power": {"type": "float", "lower": 0.0, "upper": 1.0},
}
Data = tuple[Any, Any, Any, Any]
Curve = Iterator[float]
"""Loss on held out data, after each unit."""


def network(data: Data, params: dict[str, Any], regression: bool) -> Curve:
    kind = MLPRegressor if regression else MLPClassifier
    model = kind(
        hidden_layer_sizes=(params["width"],), solver=params["solver"], alpha=params["alpha"],
        batch_size=params["batch_size"], learning_rate_init=params["learning_rate"], momentum=params["momentum"],
        random_state=0,
    )  # fmt: skip
    for _ in range(UNITS):
        if regression:
            model.partial_fit(data[0], data[2])
        else:
            model.partial_fit(data[0], data[2], classes=np.unique(data[2]))
        yield score(model, data, regression)


def linear(data: Data, params: dict[str, Any], regression: bool) -> Curve:
    model = SGDClassifier(
        "log_loss", eta0=params["learning_rate"], alpha=params["alpha"], penalty=params["penalty"],
        learning_rate=params["schedule"], power_t=params["power"], random_state=0,
    )  # fmt: skip
    for _ in range(UNITS):
        model.partial_fit(data[0], data[2], classes=np.unique(data[2]))
        yield score(model, data, regression)


def boosting(data: Data, params: dict[str, Any], regression: bool) -> Curve:
    kind = GradientBoostingRegressor if regression else GradientBoostingClassifier
    model = kind(
        learning_rate=params["learning_rate"], max_depth=params["depth"], min_samples_leaf=params["leaf"],
        subsample=params["subsample"], max_features=params["features"], random_state=0, warm_start=True, n_estimators=1,
    )  # fmt: skip
    for unit in range(1, UNITS + 1):
        model.set_params(n_estimators=unit)
        model.fit(data[0], data[2])
        yield score(model, data, regression)


def score(model: Any, data: Data, regression: bool) -> float:
    """Mean squared error by the variance of the target, or cross entropy; NaN where the model has diverged."""
    try:
        if regression:
            return float(mean_squared_error(data[3], model.predict(data[1]))) / float(np.var(data[3]))
        return float(log_loss(data[3], model.predict_proba(data[1]), labels=np.unique(data[2])))
    except ValueError as error:
        if not is_divergence(error):
            raise
        return float("nan")


def is_divergence(error: ValueError) -> bool:
    """Whether scikit-learn refuses weights, inputs or predictions that are not finite."""
    return any(word in str(error) for word in ("NaN", "infinity", "non-finite"))


TABLES: dict[str, tuple[str, Callable[[Data, dict[str, Any], bool], Curve], dict[str, Any]]] = {
    "trained_network_digits": ("digits", network, NETWORK),
    "trained_network_cancer": ("breast_cancer", network, NETWORK),
    "trained_network_wine": ("wine", network, NETWORK),
    "trained_network_diabetes": ("diabetes", network, NETWORK),
    "trained_boosting_cancer": ("breast_cancer", boosting, BOOSTING),
    "trained_boosting_wine": ("wine", boosting, BOOSTING),
    "trained_boosting_diabetes": ("diabetes", boosting, BOOSTING),
    "trained_linear_digits": ("digits", linear, LINEAR),
    "trained_linear_cancer": ("breast_cancer", linear, LINEAR),
}


def data_of(name: str) -> tuple[Data, bool]:
    """Training and held out inputs, then targets; whether it is a regression."""
    inputs, targets = getattr(datasets, f"load_{name}")(return_X_y=True)
    regression = name == "diabetes"
    parts = train_test_split(inputs, targets, test_size=0.4, random_state=0, stratify=None if regression else targets)
    scale = StandardScaler().fit(parts[0])
    if regression:
        mean, spread = float(parts[2].mean()), float(parts[2].std())
        parts[2], parts[3] = (parts[2] - mean) / spread, (parts[3] - mean) / spread
    return (scale.transform(parts[0]), scale.transform(parts[1]), parts[2], parts[3]), regression


def drawn(space: dict[str, Any], rng: np.random.Generator) -> tuple[dict[str, Any], list[float]]:
    """A configuration, and as a row of the file."""
    params, row = {}, []
    for name, one in space.items():
        if one["type"] == "categorical":
            at = int(rng.integers(len(one["choices"])))
            params[name], value = one["choices"][at], float(at)
        else:
            share = rng.uniform()
            low, high = one["lower"], one["upper"]
            value = low * (high / low) ** share if one.get("log") else low + share * (high - low)
            if one["type"] == "int":
                value = float(round(value))
            params[name] = int(value) if one["type"] == "int" else value
        row.append(value)
    return params, row


def make(name: str, rows: int, seconds: float) -> dict[str, Any] | None:
    """The arrays of a table's file; None where too few rows got ready."""
    source, train, space = TABLES[name]
    data, regression = data_of(source)
    rng, began = np.random.default_rng(0), time.process_time()
    X, losses, times = [], [], []
    while len(X) < rows and time.process_time() - began < seconds:
        params, row = drawn(space, rng)
        start, curve, clock = time.process_time(), [], []
        try:
            for loss in train(data, params, regression):
                curve.append(loss)
                clock.append(time.process_time() - start)
        except ValueError as error:
            if not is_divergence(error):
                raise
        missing = UNITS - len(curve)
        X.append(row)
        losses.append(curve + [float("nan")] * missing)
        times.append(clock + [clock[-1] if clock else 0.001] * missing)
    if len(X) < LEAST_ROWS:
        return None
    meta = {
        "primary_metric": "valid_loss",
        "direction": "min",
        "hyperparameters": [{"name": name, **one} for name, one in space.items()],
        "fidelity_unit": "trees" if train is boosting else "epochs",
        "source": f"scikit-learn, {train.__name__} on {source}",
        "real": True,
    }
    return {
        "X": np.array(X),
        "valid_loss": np.array(losses, dtype=np.float32),
        "time_s": np.array(times, dtype=np.float32),
        "fidelity": np.arange(1, UNITS + 1),
        "meta_json": np.array(json.dumps(meta)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, help="folder for the tables")
    parser.add_argument("--minutes", type=float, default=15.0, help="of processor time, for all tables")
    parser.add_argument("--rows", type=int, default=600, help="configurations of each table")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    wanted = [name for name in TABLES if not (given.out / f"{name}.npz").exists()]
    left = 60 * given.minutes
    for done, name in enumerate(wanted):
        began = time.process_time()
        found = make(name, given.rows, left / (len(wanted) - done))
        left -= time.process_time() - began
        if found is None:
            print(f"{name}: fewer than {LEAST_ROWS} rows in its share of the time; not written.")
            continue
        path = given.out / f"{name}.npz"
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez_compressed(file, **found)
        partial.rename(path)
        took = time.process_time() - began
        print(f"{name}: {len(found['X'])} rows, {path.stat().st_size / 1e3:.0f} kB, {took:.0f} s", flush=True)


if __name__ == "__main__":
    main()
