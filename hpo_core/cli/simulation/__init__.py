"""hpo simulate: what was typed, what is played, what is printed."""
