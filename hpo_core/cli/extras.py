"""Which extra of this package installs a package that is missing."""

from __future__ import annotations

EXTRAS = {
    "dask": "flows",
    "distributed": "flows",
    "prefect": "flows",
    "mlflow": "mlflow",
    "pyarrow": "mlflow",
    "torch": "torch",
    "pynvml": "gpu",
    "scipy": "retraining",
    "cmaes": "samplers",
}
"""Extra by importable name; ``pyproject.toml`` has the packages of each."""


def missing_package(error: BaseException) -> str:
    """What is missing and how to install it; empty unless the cause is a module that an extra installs."""
    cause = error
    while cause.__cause__ is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__
    name = (cause.name or "").partition(".")[0] if isinstance(cause, ModuleNotFoundError) else ""
    if name not in EXTRAS:
        return ""
    return (
        f"this command needs the package {name!r}, which is not installed. Install it with "
        f"`pip install 'hpo-core[{EXTRAS[name]}]'`, or everything with `pip install 'hpo-core[all]'`."
    )
