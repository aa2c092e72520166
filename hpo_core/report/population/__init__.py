"""Figures of population based training: fitness, schedules, family tree."""
