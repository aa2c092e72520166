"""All trials of a study as data within its page."""
