"""Partitions of the data on a worker: which lie there, and what a training sees of them."""
