"""Partitions of data: split once, listed in a study, found on the workers."""
