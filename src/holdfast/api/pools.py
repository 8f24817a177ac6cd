"""What of a pool does not come over the API: settings that name a program, a file, a URL or an account of the
control plane's own host.

An admin of the API need not be the one whose host that is: with such a setting they would have it run their
program, read its keys, or send its credentials to them. So a provider profile says them, in a file of that
host (`adapters.providers.profiles`). A pool that was applied with some before there were profiles keeps them
as they are; to change one is to name it anew.
"""

from holdfast.adapters.providers.found import of_host
from holdfast.adapters.providers.profiles import FILE
from holdfast.model.pool import Pool
from holdfast.model.world import World
from holdfast.ports.errors import Denied

EXAMPLE = "{name}: {{ provider: {provider}, settings: {{ {setting}: ... }} }}"


def of_host_anew(world: World, pool: Pool) -> list[str]:
    """Where the pool names something of the host that it did not have before, and what to do instead."""
    try:
        named = of_host(pool.provider, pool.settings)
        kept = _kept(world, pool) if named else {}
    except Denied as error:
        return [str(error)]
    return [_refusal(pool, where) for where, text in named.items() if kept.get(where) != text]


def applied(world: World, name: str) -> Pool | None:
    """As it is wanted; none: it is not, or not any more."""
    state = world.pool_states.get(name)
    return None if state is None or state.deleted_at else world.pools[name]


def is_new_to(world: World, pool: Pool) -> bool:
    """Its provider would have to be asked what it offers with settings that are not applied."""
    old = applied(world, pool.name)
    told = (pool.provider, pool.profile, pool.settings)
    return pool.lists_offers and (old is None or (old.provider, old.profile, old.settings) != told)


def _kept(world: World, pool: Pool) -> dict[str, str]:
    before = applied(world, pool.name)
    if before is None or before.provider != pool.provider:
        return {}
    return of_host(before.provider, before.settings)


def _refusal(pool: Pool, where: str) -> str:
    setting = where.rpartition(".")[2]
    path = where if setting != where else f"settings.{where}"
    example = EXAMPLE.format(name=pool.name, provider=pool.provider, setting=setting)
    return (
        f"{path} names something of the control plane's host, so a provider profile says it: there, write "
        f"`{example}` under `profiles` into {FILE}, and here `profile: {pool.profile or pool.name}`"
    )
