"""What replicas hold of their node, and the end of whoever takes more than its part."""
