"""Flows with a form in the Prefect UI: forms, permissions, deployments, their worker."""
