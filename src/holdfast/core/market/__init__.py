"""Market: offers side by side, what is remembered of each, which of them a node is launched from."""
