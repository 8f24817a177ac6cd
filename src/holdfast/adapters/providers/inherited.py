"""Which variables of the control plane's environment are passed on to agents and jobs that it starts itself.

A control plane has the credentials of a cloud, the password of a database and tokens of others in its
environment, and what runs on its nodes finds what they inherit. So only these are passed on, by name, and
what else is needed is named by whoever runs the control plane. The other way round, all but those that look
like secrets, was refused: nobody knows what the next library calls its own.

Agents that people start, and those on machines of their own (ssh, EC2), have the environment of that machine.
"""

import os
import re
from collections.abc import Iterable, Mapping

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
OURS = "HOLDFAST_"  # said to this program alone: tokens, and the address of its database
NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM"),
        # where programs and their libraries are
        *("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUNBUFFERED", "VIRTUAL_ENV"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR"),
        # GPUs
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH"),
        *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
        *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    }
)
BEGINNINGS = ("LC_",)


def may_be_inherited(name: str) -> bool:
    """Can it be named to be passed on besides?"""
    return NAME.fullmatch(name) is not None and not name.startswith(OURS)


def inherited(more: Iterable[str] = (), environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What is passed on, with those that are named besides."""
    wanted = NAMES | {name for name in more if may_be_inherited(name)}
    return {
        name: value for name, value in environment.items() if name in wanted or name.startswith(BEGINNINGS)
    }
