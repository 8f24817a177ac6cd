"""Explanations: why things are as they are, what would help, the history in words, dry runs."""
