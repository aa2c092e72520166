"""Facts of a study as people and programs read them."""
