"""The file of a gateway."""
