"""Placement: which node a replica goes to, bin packing, preemption."""
