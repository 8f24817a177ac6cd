"""The life of a request, for the gateway that serves and the simulated one."""
