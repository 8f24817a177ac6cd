"""Autoscaler: load signals, forecasts, how many replicas a service needs."""
