"""Nodes that are jobs of a Slurm cluster."""

from holdfast.adapters.providers.slurm.provider import SlurmProvider
from holdfast.adapters.providers.slurm.settings import SlurmSettings, read_settings

__all__ = ["SlurmProvider", "SlurmSettings", "read_settings"]
