"""The only place for Prefect, Dask, the wall clock and the network."""
