"""What runs on a node. Small: it starts at once and takes little memory."""
