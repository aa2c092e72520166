"""The flow and tasks of a study, its log and its page in Prefect; a study goes on without any of it."""
