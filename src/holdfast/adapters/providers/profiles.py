"""Provider profiles: settings of a pool that the host of the control plane says, and not the API.

A pool names one (`profile`), and what the profile says holds. So a file of the host decides which programs,
files, URLs and accounts of that host there are to be used, and an admin of the API only which of them a pool
uses. The profile of a pool may change, or go: the next call to its provider goes by what there is then.
"""

from collections.abc import Mapping
from difflib import get_close_matches

import msgspec
from msgspec.structs import replace

from holdfast.model.pool import Pool
from holdfast.ports.errors import Denied

FILE = "providers.yaml"


class Profile(msgspec.Struct, frozen=True):
    provider: str
    settings: dict[str, str] = {}


def settled(pool: Pool, profiles: Mapping[str, Profile]) -> Pool:
    """The pool as its provider sees it. Denied: it names a profile that it cannot have."""
    if not pool.profile:
        return pool
    profile = profiles.get(pool.profile)
    if profile is None:
        near = get_close_matches(pool.profile, profiles, n=1)
        there = f"did you mean {near[0]}?" if near else f"there is: {', '.join(sorted(profiles)) or 'none'}"
        raise Denied(f"there is no provider profile {pool.profile} in {FILE} of this control plane; {there}")
    if profile.provider != pool.provider:
        raise Denied(
            f"the provider profile {pool.profile} is for pools of {profile.provider}, not of {pool.provider}"
        )
    return replace(pool, settings={**pool.settings, **profile.settings})


def check_free(pool: Pool, profiles: Mapping[str, Profile]) -> None:
    """Denied: pool and profile say the same setting, and only the profile's would hold. It is for new pools:
    one that is there already goes on working when its profile says more."""
    both = sorted(pool.settings.keys() & profiles[pool.profile].settings.keys()) if pool.profile else []
    if both:
        names = ", ".join(f"settings.{name}" for name in both)
        raise Denied(
            f"{names}: the provider profile {pool.profile} says it already; leave it out of the pool"
        )
