"""What Prefect shows of a study: a copy of its journal, never needed for the study to go on."""
