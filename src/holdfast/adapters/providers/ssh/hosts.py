"""Which machines there are, as a pool's settings say it.

The key and the known hosts are files of the control plane's host, so a profile says them, for all machines of
a pool. Pools that were applied before there were profiles have them with each machine, and keep them.
"""

import json
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from holdfast.adapters.providers.names import ADDRESS, USER
from holdfast.adapters.providers.settings import Kind, Settings

FIELDS = "name, address, port, user, python, root"
OF_HOST = ("key_file", "known_hosts")


class SshHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine that can become a node. Its name is the name of the offer."""

    name: str
    address: str
    port: int = 22
    user: str = ""  # empty: ours
    key_file: str = ""  # empty: the keys that ssh would try
    known_hosts: str = ""  # empty: those of the user
    python: str = "python3"
    root: str = ".holdfast"  # below the home of the user, unless it is absolute


class BadHosts(ValueError):
    """The settings do not say which machines there are."""


def read_hosts(settings: Mapping[str, str]) -> tuple[SshHost, ...]:
    """From `hosts`: a JSON list of objects; with the key and the known hosts of the settings."""
    text = settings.get("hosts", "")
    if not text:
        raise BadHosts(f"the pool's settings need `hosts`: a JSON list of objects with {FIELDS}")
    try:
        hosts = msgspec.json.decode(text, type=tuple[SshHost, ...])
    except msgspec.DecodeError as error:
        raise BadHosts(f"the pool's setting `hosts` is not right: {error}; an object has {FIELDS}") from error
    names = [host.name for host in hosts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadHosts(f"two hosts have one name: {', '.join(map(json.dumps, twice))}")
    if not all(host.name and host.address for host in hosts) or not hosts:
        raise BadHosts("every host needs a name and an address, and there must be one at least")
    for host in hosts:
        if not ADDRESS.fullmatch(host.address) or not USER.fullmatch(host.user):
            raise BadHosts(f"{host.name} cannot be reached as {host.user}@{host.address}: these are no names")
    given = {name: settings[name] for name in OF_HOST if settings.get(name)}
    return tuple(replace(host, **given) for host in hosts)


def _of_host(settings: Mapping[str, str]) -> dict[str, str]:
    """What the machines have of it. It is kept with all machines as they are: a key is not used elsewhere."""
    try:
        hosts = read_hosts({"hosts": settings.get("hosts", "")})
    except BadHosts:
        return {}
    found = ((number, name) for number, host in enumerate(hosts) for name in OF_HOST if getattr(host, name))
    return {f"hosts[{number}].{name}": settings["hosts"] for number, name in found}


def _file(text: str) -> str:
    if not text.isprintable():
        raise ValueError(text)
    return text


TAKES = Settings(
    {
        "hosts": Kind(
            "the machines there are, at least one",
            "[{ name: a }]",
            lambda text: read_hosts({"hosts": text}),
            needed=True,
        ),
        "key_file": Kind("the path of a private key", "/etc/holdfast/lab_key", _file, of_host=True),
        "known_hosts": Kind(
            "the path of a file with the keys of the hosts", "/etc/holdfast/known_hosts", _file, of_host=True
        ),
    },
    inside=_of_host,
)
