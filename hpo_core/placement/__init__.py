"""Which job runs on which slot: the pure step between a study and its executor."""
