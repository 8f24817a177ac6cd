"""The commands, one module each or a few that belong together."""
