"""Unchanged Optuna objectives as training functions."""
