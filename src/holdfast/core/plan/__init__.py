"""A plan in the making: what it has placed, how a workload asks it for room, what is kept for others."""
