"""Measurements of scale.py, one module for each layer: ``CASES`` and ``measure(**case)``."""
