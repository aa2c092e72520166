"""Model hopping: jobs become units that run where their partitions lie."""
