"""Health: failure detector, peer probes, fencing, the brake, repair of nodes that fail what they run."""
