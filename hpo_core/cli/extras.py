"""Which extra of this package installs a package that is missing."""

from __future__ import annotations

EXTRAS = {
    "dask": "flows",
    "distributed": "flows",
    "prefect": "flows",
    "mlflow": "mlflow",
    "torch": "torch",
    "pynvml": "gpu",
    "scipy": "retraining",
    "cmaes": "samplers",
}
"""Extra by importable name; ``pyproject.toml`` has the packages of each."""


def missing_package(error: ModuleNotFoundError) -> str:
    """What is missing and how to install it; empty for a module that no extra installs."""
    name = (error.name or "").partition(".")[0]
    if name not in EXTRAS:
        return ""
    return (
        f"this command needs the package {name!r}, which is not installed. Install it with "
        f"`pip install 'hpo-core[{EXTRAS[name]}]'`, or everything with `pip install 'hpo-core[all]'`."
    )
