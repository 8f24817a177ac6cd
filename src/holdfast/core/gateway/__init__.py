"""How requests reach the replicas that answer them."""
