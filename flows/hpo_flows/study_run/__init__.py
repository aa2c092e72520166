"""A study driven in this process: its session, its flow run, its task runs."""
