"""At which address is a node reached?

The question: a node reports its address in its hello, and gateways, peers and the other members of a gang
connect to it. A node that is believed could send the requests of clients to a metadata service
(169.254.169.254), to the gateway's own admin listener (127.0.0.1), or to any other machine (SSRF).

The rule: the address is the one that the link comes from, or one inside the `network` that the node's pool
declares, which only who may apply pools can write. Loopback is believed of a node on this very machine alone;
link-local, multicast, reserved and unspecified addresses never, whatever is declared. What is refused is
replaced by the address that the link comes from: a node behind NAT stays a node, its log line says what to
declare, and its replicas are found as soon as that is done and it says hello again.

Host names are not believed: their owner may let them point elsewhere after they were looked at. An agent
resolves its `--address` itself.

Refused: probing the claimed address from here. It shows that something answers there, not that it is the
node, and makes the control plane itself send requests to where a node likes.
"""

import ipaddress
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.wire.address import Address, read_address

HINT = "declare the network of its pool: network: 10.0.0.0/8"


class Reached(NamedTuple):
    address: str  # empty: none is known that could be used
    refused: str = ""  # why the one that the node reported is not used


def reached_at(claimed: str, link: str, own: str, networks: Iterable[str]) -> Reached:
    """`link`: where the connection comes from; `own`: our end of it."""
    peer = read_address(link)
    here = peer is not None and (peer.is_loopback or peer == read_address(own))
    fallback = str(peer) if peer is not None and not _never(peer) else ""
    if not claimed:
        return Reached(fallback)
    address = read_address(claimed)
    if address is None:
        return Reached(fallback, "it is no IP address")
    if _never(address):
        return Reached(fallback, "no node is reached at such an address")
    if address.is_loopback and not here:
        return Reached(fallback, "it is a loopback address, and the link comes from another machine")
    if address == peer or address.is_loopback or _inside(address, networks):
        return Reached(str(address))
    return Reached(fallback, "the link does not come from it, and it is not inside the network of the pool")


def _never(address: Address) -> bool:
    if address.is_loopback:
        return False  # ::1 counts as reserved as well
    return address.is_link_local or address.is_multicast or address.is_unspecified or address.is_reserved


def _inside(address: Address, networks: Iterable[str]) -> bool:
    return any(address in ipaddress.ip_network(network, strict=False) for network in networks)
