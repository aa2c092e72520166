"""Devices: what there is, what a job is given of one, what it used."""
