"""How many connections does an address have, and whose address is it?

One address has a bounded part of a worker's connections, so that it cannot take all of them. IPv6 is counted
by /64: whoever has one address there has 2^64. A load balancer has the clients of everybody: where it is
listed as a trusted proxy its connections are not counted, and a request from it comes from the last address
in `x-forwarded-for` that is no trusted proxy's. From anybody else that header says nothing.
"""

import ipaddress
from collections.abc import Iterable

KNOWN_MAX = 4_096
LONGEST = 45  # as it is written
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Addresses:
    def __init__(self, most: int, trusted: Iterable[str] = ()) -> None:
        self.most = most
        self.slack = max(16, most // 8)  # of those over it, so many are told why
        self.trusted: list[Network] = [ipaddress.ip_network(each) for each in trusted]
        self.connections: dict[str, int] = {}
        self._known: dict[str, str] = {}

    def group(self, peer: str) -> str:
        """By which it is counted; empty: it is not."""
        found = self._known.get(peer)
        if found is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            found = self._known[peer] = self._group(peer)
        return found

    def _group(self, peer: str) -> str:
        try:
            address = ipaddress.ip_address(peer.partition("%")[0])
        except ValueError:  # a socket of this machine has none
            return peer
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or address
        if any(address in network for network in self.trusted):
            return ""
        if isinstance(address, ipaddress.IPv6Address):
            return str(ipaddress.ip_network((address, 64), strict=False))
        return str(address)

    def opened(self, group: str) -> int:
        """How many it has by now."""
        count = self.connections.get(group, 0) + 1
        self.connections[group] = count
        return count

    def closed(self, group: str) -> None:
        left = self.connections.get(group, 0) - 1
        if left > 0:
            self.connections[group] = left
        else:
            self.connections.pop(group, None)

    def before(self, forwarded: bytes) -> str:
        """Who asked a trusted proxy; empty: it does not say."""
        for each in reversed(forwarded.split(b",")):
            said = each.strip().decode("latin1")
            if said.count(":") == 1:
                said = said.partition(":")[0]  # some add the port
            if said and len(said) <= LONGEST:
                found = self.group(said)
                if found:
                    return found
        return ""
