"""Tables: nodes and workloads, capacity, keys, offers and spending."""
