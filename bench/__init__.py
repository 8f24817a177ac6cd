"""Benchmarks: each module here with a `run` is one, `python -m bench NAME` runs it."""
