"""Which providers there are here, and how one is made for a pool.

Ours are named below; others are found by their entry point in the group `holdfast.providers`, which names
something to be called with the pool's settings and the credentials of its nodes. What it declares as `takes`
are the settings it knows (`settings.Settings`); without that, nobody can check them beforehand, and all of
them come from a profile. None is loaded before a pool asks for it, and ours ask for a cloud's library when
they first need it: whoever has no cloud needs none.

Others' code may fail in any way while it is loaded and called, and may even want to end the program: then the
pool is Denied with the reason. It is one pool's misfortune, and not the fleet's.
"""

import importlib
from collections.abc import Collection, Mapping
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import Any, Final

from holdfast.adapters.providers.settings import Settings, Wrong, told
from holdfast.model.pool import Pool
from holdfast.ports.errors import Denied, PortError
from holdfast.ports.provider import Credentials, Provider

GROUP: Final = "holdfast.providers"
OURS: Final = {
    "local": "holdfast.adapters.providers.local.provider:LocalProvider",
    "join": "holdfast.adapters.providers.join:JoinProvider.from_settings",
    "ssh": "holdfast.adapters.providers.ssh.provider:SshProvider.from_settings",
    "ec2": "holdfast.adapters.providers.ec2.provider:Ec2Provider.from_settings",
    "slurm": "holdfast.adapters.providers.slurm.provider:SlurmProvider.from_settings",
}
CALLS: Final = ("launch", "terminate", "reset", "state", "list", "offers")


def others() -> dict[str, EntryPoint]:
    """Those that somebody else made. Ours keep their names."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in OURS}


def declared(provider: str) -> Settings | None:
    """What it takes; none: it does not say. Denied: there is no such provider."""
    return _takes(_loaded(provider))


def wrong_settings(
    provider: str, settings: Mapping[str, str], offers: Collection[str], *, whole: bool = True
) -> list[Wrong]:
    """What the provider says of settings beforehand; `whole`: no profile says more. One that cannot be had,
    or cannot tell, says nothing: that is told when its pool is used."""
    try:
        takes = declared(provider)
        return takes.wrong(settings, offers, whole=whole) if takes is not None else []
    except (Exception, SystemExit):
        return []


def of_host(provider: str, settings: Mapping[str, str]) -> dict[str, str]:
    """What in them may only come from a profile: where it stands -> a text that changes with it. Where the
    provider does not declare what it takes, that is everything: what they name is not known. Denied: there is
    no such provider."""
    takes = declared(provider)
    if takes is None:
        return dict(settings)
    try:
        return takes.of_host(settings)
    except Exception as error:
        raise Denied(f"the provider {provider} cannot tell what its settings name: {_told(error)}") from error


def made_of(pool: Pool, credentials: Credentials) -> Provider:
    found = _loaded(pool.provider)
    if not callable(found):
        raise Denied(f"the provider {pool.provider} cannot be made: its entry point is nothing to call")
    try:
        takes = _takes(found)
        if takes is not None and (wrong := takes.wrong(pool.settings, [offer.name for offer in pool.offers])):
            raise ValueError(told(wrong))
        made: Provider = found(pool.settings, credentials)
    except PortError:
        raise
    except ValueError as error:  # settings that do not make sense
        raise Denied(f"the settings of {pool.name} cannot be used: {error}") from None
    except (Exception, SystemExit) as error:
        raise Denied(f"the provider {pool.provider} cannot be made: {_told(error)}") from error
    if missing := [name for name in CALLS if not callable(getattr(made, name, None))]:
        raise Denied(f"the provider {pool.provider} cannot be used: it has no {', '.join(missing)}")
    return made


def _takes(found: object) -> Settings | None:
    """Of a class, or of the one whose method it is."""
    takes = getattr(getattr(found, "__self__", found), "takes", None)
    return takes if isinstance(takes, Settings) else None


def _loaded(name: str) -> Any:
    points = {} if name in OURS else others()
    if name not in OURS and name not in points:
        raise Denied(f"there is no provider called {name} here; there is: {', '.join((*OURS, *points))}")
    try:
        return points[name].load() if name in points else _ours(name)
    except (Exception, SystemExit) as error:
        raise Denied(f"the provider {name} cannot be loaded: {_told(error)}") from error


def _ours(name: str) -> object:
    module, _, path = OURS[name].partition(":")
    return attrgetter(path)(importlib.import_module(module))


def _told(error: Exception | SystemExit) -> str:
    return str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
