"""Would secrets cross a network in plain text?

Keys of clients come to the first listener, the admin token to the second. On loopback both may do without
TLS. On any other address they may not, unless the file says that it is meant so: `insecure`, because TLS ends
at a load balancer in front of the gateway, or because the network is trusted. A gateway that needs no keys
takes no secrets from clients.

Refused: only to warn. A warning is read once, by whoever tries it on their own machine.
"""

from collections.abc import Iterator

from holdfast.gateway.settings import Gateway
from holdfast.wire.address import is_loopback

HINT = "set tls, listen on 127.0.0.1, or set insecure: true where TLS ends in front of the gateway"


def exposed(wanted: Gateway) -> Iterator[tuple[str, str, str]]:
    """The field of the file, what is wrong, and what helps."""
    if wanted.insecure or wanted.certificate is not None:
        return
    if not is_loopback(wanted.host) and not wanted.open:
        text = f"keys would come over plain http to {wanted.host}, which is reachable from other machines"
        yield "listen", text, HINT
    if not is_loopback(wanted.admin_host):
        text = f"the admin token would come over plain http to {wanted.admin_host}, which is reachable from"
        yield (
            "admin",
            f"{text} other machines",
            HINT.replace("listen on 127.0.0.1", "leave admin on 127.0.0.1"),
        )
