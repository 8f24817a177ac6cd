"""Which machines there are, as a pool's settings say it."""

import json

import msgspec

from holdfast.adapters.providers.settings import Kind, Settings

FIELDS = "name, address, port, user, key_file, known_hosts, python, root"


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


def read_hosts(settings: dict[str, str]) -> tuple[SshHost, ...]:
    """From `hosts`: a JSON list of objects."""
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
    return hosts


TAKES = Settings(
    {
        "hosts": Kind(
            "the machines there are, at least one",
            "[{ name: a }]",
            lambda text: read_hosts({"hosts": text}),
            needed=True,
        )
    }
)
