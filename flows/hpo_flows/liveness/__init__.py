"""Who is still alive: the flow process, its worker, the Prefect API."""
