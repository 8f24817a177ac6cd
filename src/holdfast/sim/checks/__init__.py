"""What must hold of a simulation: safety, liveness, leaks, bills, requests."""
