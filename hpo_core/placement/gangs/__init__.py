"""Gangs: jobs of several slots, which begin whole."""
