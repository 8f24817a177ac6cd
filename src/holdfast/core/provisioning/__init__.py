"""Provisioner: which nodes are launched and terminated, so that pools have what they should."""
