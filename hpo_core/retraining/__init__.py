"""Whether a champion stays: drift of its data, retraining or tuning, and the test a challenger must pass. Pure."""
