"""Callbacks that run other training loops under a trial handle. Each module needs its own optional package."""
