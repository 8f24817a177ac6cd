"""Which machine is meant by a host's name?"""

import ipaddress


def is_loopback(host: str) -> bool:
    """This one, whoever says it. A name that only begins like an address of it is somebody else's."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
