"""Model hopper parallelism: which configuration trains on which partition, where, and when."""
