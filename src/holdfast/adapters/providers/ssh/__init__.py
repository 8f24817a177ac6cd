"""Nodes that are machines we can log in to."""

from holdfast.adapters.providers.ssh.hosts import BadHosts, SshHost
from holdfast.adapters.providers.ssh.provider import SshProvider

__all__ = ["BadHosts", "SshHost", "SshProvider"]
