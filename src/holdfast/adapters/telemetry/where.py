"""Where a Prometheus may be asked: at addresses that a machine can have, and not at those that answer only to
the machine that asks.

The control plane asks whatever address a workload names. Link-local ones have the metadata of a cloud, with
the credentials of the machine. A name is looked up once, and what it leads to is what is asked: looked up
again for the connection, it could lead elsewhere by then.
"""

import asyncio
import ipaddress
import socket

import httpx

from holdfast.ports.errors import Denied

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
METADATA = ipaddress.ip_network("fd00:ec2::/32")  # of EC2, over IPv6; that over IPv4 is link-local
TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # IPv4 behind NAT64


def is_asked(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_asked(address.ipv4_mapped)
        if address in TRANSLATED:
            return is_asked(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
        if address in METADATA:
            return False
    return not (address.is_link_local or address.is_multicast or address.is_unspecified)


async def addresses_of(url: httpx.URL) -> tuple[str, ...]:
    """Denied: one of them is none to ask. OSError: nobody knows the name."""
    port = url.port or (443 if url.scheme == "https" else 80)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
    addresses = tuple(dict.fromkeys(str(each[4][0]).partition("%")[0] for each in found))
    for address in addresses:
        if not is_asked(ipaddress.ip_address(address)):
            raise Denied(f"{url.host} is {address}: no Prometheus is asked at such an address")
    return addresses
