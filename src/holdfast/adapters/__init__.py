"""What the ports are made of, one folder a port."""
