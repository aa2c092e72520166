"""The steps of the flow ``retrain``."""
