"""The functions of :mod:`usage_objectives`, in a zygote that has imported torch."""

import torch  # noqa: F401
from usage_objectives import dispatch

__all__ = ["dispatch"]
