"""Gangs: jobs of several slots, and their ranks."""
