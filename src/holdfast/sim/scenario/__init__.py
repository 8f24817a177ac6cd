"""What a story says: fleet, load, markets, traces."""
