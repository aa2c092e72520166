"""The ``hpo`` command."""
