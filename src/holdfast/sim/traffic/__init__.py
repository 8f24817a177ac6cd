"""Simulated requests at simulated gateways."""
