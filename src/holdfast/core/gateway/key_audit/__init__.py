"""Audit of keys: usage that works for nobody, its indicators, what is done about it."""
