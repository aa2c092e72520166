"""Models that hop, as people look at them: units, workers, bytes moved, the order of visits."""
