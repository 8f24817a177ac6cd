"""Which machine is meant by a host's name, and which ports of a node are its replicas'."""

import ipaddress

REPLICA_PORTS = (20_000, 29_999)
"""Agents allot ports to replicas from this range, and control planes believe no other."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def read_address(text: str) -> Address | None:
    """An IPv4 address that is written as IPv6 is the same one. None: it is something else, such as a name."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def is_loopback(host: str) -> bool:
    """This one, whoever says it. A name that only begins like an address of it is somebody else's."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
