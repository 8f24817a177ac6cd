"""The control plane: the loop, its hands, its ears."""
