"""The protocol of ``samplers.py``: problems, searches of ours and of peers in virtual time, comparison, report."""
