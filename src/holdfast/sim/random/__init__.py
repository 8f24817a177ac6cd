"""Random stories from a seed, and sweeps over them."""
