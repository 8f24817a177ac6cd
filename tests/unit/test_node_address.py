"""At which address is a node reached? What a node reports of it is believed within bounds."""

import pytest

from holdfast.control.node_address import Reached, reached_at

LAN, PUBLIC, OWN, HOME = "10.0.0.7", "198.51.100.7", "10.0.0.1", "127.0.0.1"


@pytest.mark.parametrize(
    ("claimed", "link", "networks", "address"),
    [
        (LAN, LAN, (), LAN),  # where the link comes from
        ("", LAN, (), LAN),
        (LAN, f"::ffff:{LAN}", (), LAN),  # a listener for IPv6 sees IPv4 so
        ("fd00::7", "fd00::7", (), "fd00::7"),
        (LAN, PUBLIC, ("10.0.0.0/8",), LAN),  # behind NAT, declared
        ("fd00::7", PUBLIC, ("10.0.0.0/8", "fd00::/8"), "fd00::7"),
        (HOME, HOME, (), HOME),  # a node of this machine
        ("127.0.0.9", HOME, (), "127.0.0.9"),
        (HOME, OWN, (), HOME),  # it joined by another address of this machine
        (LAN, HOME, ("10.0.0.0/8",), LAN),  # through a proxy on this machine
    ],
)
def test_an_address_is_believed(claimed: str, link: str, networks: tuple[str, ...], address: str) -> None:
    assert reached_at(claimed, link, OWN, networks) == Reached(address)


ALL = ("0.0.0.0/0", "::/0")


@pytest.mark.parametrize(
    ("claimed", "link", "networks", "address"),
    [
        ("169.254.169.254", LAN, (), LAN),  # the metadata service of a cloud
        ("169.254.169.254", LAN, ALL, LAN),
        ("::ffff:169.254.169.254", LAN, ALL, LAN),
        ("64:ff9b::a9fe:a9fe", LAN, ALL, LAN),
        ("fe80::1%eth0", LAN, ALL, LAN),
        ("127.0.0.1", LAN, ALL, LAN),  # the gateway's own admin listener
        ("::1", LAN, ALL, LAN),
        ("::ffff:127.0.0.1", LAN, ALL, LAN),
        ("0.0.0.0", LAN, ALL, LAN),
        ("::", LAN, ALL, LAN),
        ("224.0.0.1", LAN, ALL, LAN),
        ("255.255.255.255", LAN, ALL, LAN),
        ("10.0.0.8", LAN, (), LAN),  # another node
        ("10.0.0.8", LAN, ("10.1.0.0/16",), LAN),
        ("10.0.0.8", HOME, (), HOME),
        ("metadata.google.internal", LAN, ALL, LAN),
        ("localhost", LAN, ALL, LAN),
        ("2852039166", LAN, ALL, LAN),  # other ways to write 169.254.169.254
        ("0xa9.0xfe.0xa9.0xfe", LAN, ALL, LAN),
        ("169.254.43518", LAN, ALL, LAN),
        ("10.0.0.7:22", LAN, ALL, LAN),
        ("10.0.0.7/", LAN, ALL, LAN),
        ("10.0.0.8", "fe80::2%eth0", (), ""),  # the link itself comes from where no node is reached
        ("10.0.0.8", "", (), ""),
    ],
)
def test_an_address_is_not_believed(claimed: str, link: str, networks: tuple[str, ...], address: str) -> None:
    found = reached_at(claimed, link, OWN, networks)
    assert (found.address, bool(found.refused)) == (address, True)
