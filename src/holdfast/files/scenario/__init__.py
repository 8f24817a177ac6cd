"""Scenario files: their tables, what must agree, and the scenario that the simulator runs."""
