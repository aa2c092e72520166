"""Models that hop over partitions of the digits: a network (torch) and a linear classifier (scikit-learn)."""
