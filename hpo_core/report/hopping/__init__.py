"""Models that hop, in the report."""
