"""Spot and deadlines: the mix of spot and on demand, and jobs that must be done in time."""
