"""Pages of a study in Prefect: a copy of its journal, never needed for the study to go on."""
