"""Training function that changes settings and variables of other libraries; no tests in here. See dirty_objectives."""

from __future__ import annotations

import decimal
import zlib

import matplotlib as mpl
import numpy as np
import pandas as pd
import scipy.special
import scipy.stats
import threadpoolctl
import yaml

import hpo_core

mpl.use("Agg")
import matplotlib.pyplot as plt

FRAME = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})
HALF = decimal.Decimal(1) / 2


def seen():
    """What an attempt can see of these libraries."""
    pools = [(each["user_api"], each["num_threads"]) for each in threadpoolctl.threadpool_info()]
    return [
        plt.get_fignums(), mpl.rcParams["axes.facecolor"], pd.get_option("compute.use_bottleneck"),
        pd.get_option("display.max_rows"), scipy.special.geterr()["loss"], pools, FRAME.to_csv(),
        decimal.getcontext().prec, "dirty" in mpl.colormaps,
        scipy.stats.norm.random_state is np.random.mtrand._rand, "!dirty" in yaml.SafeLoader.yaml_constructors,
    ]  # fmt: skip


def train(trial):
    found = seen()
    print(*found, sep="\n")
    trial.track(state=hpo_core.State(a=1))
    for _ in trial.steps():
        trial.report(loss=0.5, seen=zlib.crc32(str(found).encode()))
    doing = trial.params["do"]
    (PUT_BACK | {name: do for name, (do, _) in NOTICED.items()})[doing]()


def _import_in_function():
    """A library that was not imported yet, whose import sets a variable that compiled libraries read."""
    from sklearn.neighbors import KNeighborsClassifier

    KNeighborsClassifier(1).fit([[0.0], [1.0]], [0, 1]).predict([[0.2]])


PUT_BACK = {
    "nothing": lambda: None,
    "figure": lambda: plt.plot([1, 2]),
    "style": lambda: plt.style.use("ggplot"),
    "pandas": lambda: pd.set_option("compute.use_bottleneck", False),
    "pandas display": lambda: pd.set_option("display.max_rows", 7),
    "scipy errors": lambda: scipy.special.seterr(all="raise"),
    "thread pools": lambda: threadpoolctl.threadpool_limits(1),
    "decimal at import": lambda: setattr(decimal.getcontext(), "prec", 4),
    "index of a frame": lambda: FRAME.loc[1, "a"],
    "colormap": lambda: mpl.colormaps.register(mpl.colors.ListedColormap(["k"], name="dirty")),
    "after all": lambda: None,
}
NOTICED = {
    "import": (_import_in_function, "KMP_INIT_AT_FORK was set in the environment, perhaps by "),
    "value of a frame": (lambda: FRAME.loc.__setitem__((0, "a"), 5.0), "dirty_libraries.FRAME changed"),
    "generator of a distribution": (
        lambda: setattr(scipy.stats.norm, "random_state", 5),
        "norm._random_state was replaced",
    ),
    "constructor": (
        lambda: yaml.SafeLoader.add_constructor("!dirty", lambda *_: 5),
        "SafeLoader.yaml_constructors is new",
    ),
}
