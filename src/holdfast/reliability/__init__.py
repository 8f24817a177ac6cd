"""How often things fail, how long they stay down, and what follows from it. Nothing here decides."""
