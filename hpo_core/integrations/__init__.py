"""Callbacks that run other training loops under a trial handle, and our stopping rule as a pruner of Optuna."""
