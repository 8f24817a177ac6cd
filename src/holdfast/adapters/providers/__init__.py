"""Providers: a folder each."""
