"""Nodes that are machines of EC2, or of a cloud that speaks its language."""
