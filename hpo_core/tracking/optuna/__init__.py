"""A study's copy in an Optuna storage, and a study of Optuna's as one of ours."""
