"""Samplers propose parameters. Ours are pure functions of (seed, trial number); Optuna's are oracles."""
