"""The verbs: pure decisions over the world. No IO, clock, randomness, logging or async in here."""
