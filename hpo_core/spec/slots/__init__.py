"""Settings of how many slots the jobs of a study get."""
