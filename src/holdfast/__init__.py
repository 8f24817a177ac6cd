"""holdfast keeps compute available: say what must stay up, and it stays up."""

__version__ = "0.1.0"
