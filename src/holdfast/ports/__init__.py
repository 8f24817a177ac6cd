"""What the control plane needs of the outside, as Protocols, and the errors it must be able to tell apart."""
