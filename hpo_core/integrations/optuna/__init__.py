"""Pruners for plain Optuna (``study.optimize``) by the rules of this package: exact, and O(log n) a decision.

::

    pruner = AshaPruner(max_resource=27, reduction_factor=3)
    study = optuna.create_study(pruner=pruner)
    study.optimize(objective, n_jobs=4)   # reports steps 1, 2, 3, ... and asks should_prune() after each

What is exact when. A decision counts the results that the pruner knows at that moment, the trial's own included.

- Threads of one process (``n_jobs``): it knows every result that a decision was asked for, and those that the storage
  held when it was first asked. Decisions are taken one after the other.
- Several processes on one storage: give each ``shared=True``. Before a decision it reads the trials that may have
  changed. It knows what the storage holds at that moment; this costs O(n).
- A pruner that is pickled, or made anew in another process, begins by reading the storage. ``AshaPruner`` writes
  nothing there, ``PashaPruner`` one attribute of the study each time its ceiling is raised.
"""

from hpo_core.integrations.optuna.asha_pruner import AshaPruner
from hpo_core.integrations.optuna.pasha_pruner import PashaPruner

__all__ = ["AshaPruner", "PashaPruner"]
