"""State: the only writer of the world (`fold`), its indexes, and the whole of it as bytes."""
