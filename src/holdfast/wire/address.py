"""Which machine is meant by a host's name, may it be reached without TLS, and which ports of a node are its
replicas'?

Beyond this machine, who listens is not known until a certificate says so, and all in between read along: a
token that goes there over plain http is lost, and an agent would run what anybody orders. So an address
without a scheme means https there, and plain http takes `--insecure`. On loopback there is no in between.
"""

import ipaddress

REPLICA_PORTS = (20_000, 29_999)
"""Agents allot ports to replicas from this range, and control planes believe no other."""

V6_PREFIX = 64

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def read_address(text: str) -> Address | None:
    """An IPv4 address that is written as IPv6 is the same one. None: it is something else, such as a name."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def counted_as(address: str) -> str:
    """As whose an address counts where machines are limited: a /64 of IPv6 is what one machine is given."""
    found = read_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, V6_PREFIX), strict=False))
    return str(found) if found is not None else address


def is_loopback(host: str) -> bool:
    """This one, whoever says it. A name that only begins like an address of it is somebody else's."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def usual_scheme(host: str) -> str:
    """Where an address names none."""
    return "http" if is_loopback(host) else "https"


def is_plain(scheme: str, host: str) -> bool:
    """Would it go to another machine for all in between to read?"""
    return scheme == "http" and not is_loopback(host)
