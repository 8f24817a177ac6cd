"""Load balancer: endpoints, prefix affinity, outlier detection, fair queue, retry budget."""
