"""The Prefect API that shows a study: the user's, or the server of a home."""
