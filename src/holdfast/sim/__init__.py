"""The deterministic simulator: twins of every port, faults as data, checkers, transcripts."""
