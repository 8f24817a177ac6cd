"""The agent's own decisions: its state machine, and the desired set that it is sent."""
