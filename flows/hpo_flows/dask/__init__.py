"""Dask clusters: one file for each kind, the executor, and the watch over workers."""
