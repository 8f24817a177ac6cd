"""Where numbers about workloads come from."""
