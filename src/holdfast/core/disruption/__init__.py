"""Disruption: moving replicas without a gap, rebalancing, consolidation of under-used nodes."""
