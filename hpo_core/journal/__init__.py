"""The append-only record of decisions: memory and SQL behind one protocol."""
