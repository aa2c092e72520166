"""Small studies on real data; each runs in under a minute on two cores."""
