"""Trained models in the form that MLflow's own functions load."""
