"""Files that people write: read, checked, and turned into what the rest of holdfast speaks."""
