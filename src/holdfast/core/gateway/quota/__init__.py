"""Rate limits: token buckets, what the leader lends to gateways, and they to their workers."""
