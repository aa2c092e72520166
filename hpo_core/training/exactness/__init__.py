"""Resumes that have the same bits as a training in one go: what is saved, what is forgotten, and the proof."""
