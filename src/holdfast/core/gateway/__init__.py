"""The decisions of the gateway: quota, routing, and which keys drain it for nobody."""
