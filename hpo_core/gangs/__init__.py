"""Gangs: several processes that train one trial, and trials that grow into free slots."""
