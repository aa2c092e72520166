"""The same jobs in a module that imports torch."""

import torch  # noqa: F401
from objective import train, train_computing, train_saving  # noqa: F401
