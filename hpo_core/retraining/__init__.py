"""Decides if a registered model (the champion) stays: drift check, retraining or tuning, promotion test. Pure."""
