"""Optuna both ways: its samplers and objectives here, our trials there."""
