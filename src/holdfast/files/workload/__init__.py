"""Workload files: their documents, what must agree, and the way back to a file."""
