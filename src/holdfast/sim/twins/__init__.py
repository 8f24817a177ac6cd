"""Twins of what the outside does: hosts, network, provider, store, registry, a control plane's host loop."""
