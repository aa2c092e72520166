"""What reproduces a study, kept with its run in MLflow: journal, study file, code version, environment."""
