"""Gangs: several processes (ranks) that train one trial together by torch.distributed."""
