"""``hpo ui``: everything that shows the studies of a home."""
