"""Workloads: their slots, the scheduler that fills them, gangs, redundancy, what an apply means."""
