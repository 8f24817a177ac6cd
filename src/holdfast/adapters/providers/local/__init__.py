"""Nodes that are processes of this machine."""
