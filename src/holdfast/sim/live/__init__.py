"""Twins over real sockets: an engine that serves a model, agents without machines."""
