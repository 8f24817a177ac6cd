"""The only module that knows which adapter serves which port: it puts a control plane together and runs it.

`serve` is a control plane by itself. `up` is the same with local nodes that live and end with it.
"""

import asyncio
import contextlib
import fcntl
import resource
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import structlog
import uvicorn

from holdfast.adapters.audit_file import AuditFile
from holdfast.adapters.clock import HostClock
from holdfast.adapters.providers.found import made_of
from holdfast.adapters.providers.local.provider import LocalProvider
from holdfast.adapters.providers.profiles import FILE, Profile, check_free, settled
from holdfast.adapters.stores import SqlStore, open_store, sqlite_path, unverified
from holdfast.adapters.telemetry.prometheus import Prometheus
from holdfast.api.access import Access
from holdfast.api.app import close, create_app, finish
from holdfast.api.edge import KnownBy
from holdfast.api.token_limits import USUAL, TokenLimits
from holdfast.control import authority as authority_of
from holdfast.control import first_token as first_token_of
from holdfast.control import mark
from holdfast.control.authority import Authority
from holdfast.control.certificates import OwnCertificates, Shown
from holdfast.control.enrol import Enrolment
from holdfast.control.front import front
from holdfast.control.leaving import Leaving
from holdfast.control.plane import LEADER_TTL_MS, Plane
from holdfast.files.problem import FileProblem
from holdfast.files.provider_profiles.profiles_file import HostFile, ProviderFile
from holdfast.model.event import Event, PoolApplied
from holdfast.model.pool import Pool
from holdfast.model.units import Instant, Millis
from holdfast.model.world import World
from holdfast.ports import private_folder, secret_file
from holdfast.ports.errors import Denied
from holdfast.ports.provider import Closing, Join, Provider, Supervised
from holdfast.ports.registry import Registry
from holdfast.wire import certificates as certificate_files
from holdfast.wire import pin
from holdfast.wire.address import is_loopback, is_plain
from holdfast.wire.certificates import Certificates
from holdfast.wire.server import Server

CLOSE_S = 5
TOGETHER_S = 0.5
SOON_S = 0.1
RESTORE = "restore the database from a copy; or, if that fleet is no more: --new-fleet begins another here"
LOCAL = "local"  # who brings the pools of the command line, for history
PROFILES_S = 5.0  # from one look at the file of provider profiles to the next
SUPERVISE_AGAIN_S = 10.0  # after a provider stopped by a mistake

log = structlog.get_logger("holdfast")


class CannotStart(Exception):
    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.hint = hint


@dataclass(frozen=True)
class Settings:
    state: Path
    host: str = "127.0.0.1"
    port: int = 7700
    name: str = ""
    url: str = ""  # where others reach us; empty: made from host and port
    database: str = ""  # empty: SQLite in `state`
    certificate: Path | None = None
    key: Path | None = None
    own_ca: bool = False  # TLS by an authority of our own; so it is beyond loopback if nothing is said
    insecure: bool = False
    pools: tuple[Pool, ...] = ()  # that every start brings with it
    leaving: Leaving | None = None  # all that was launched ends with us
    new_fleet: bool = False  # begin anew where there was one
    new_token: bool = False  # the one in `state` was lost
    leader_ttl_ms: Millis = LEADER_TTL_MS  # unless it is renewed, a leadership ends after this
    limits: TokenLimits = USUAL  # of one token
    provider_profiles: Path | None = None  # none: providers.yaml in `state`, if it is there
    allow_local: bool = False  # nodes on this host, as this user
    inherit_env: tuple[str, ...] = ()  # variables that local nodes get besides the usual ones


def check(settings: Settings) -> None:
    """Refuses what would let strangers in."""
    if bool(settings.certificate) != bool(settings.key):
        raise CannotStart("TLS needs both a certificate and a key", "give --tls-cert and --tls-key")
    if settings.certificate is not None and settings.key is not None:
        try:
            certificate_files.check(settings.certificate, settings.key)
        except secret_file.Exposed as error:
            raise CannotStart(f"--tls-key: {error}", error.hint) from None
        except OSError as error:  # ssl's own are among them
            why = f"{settings.certificate} and {settings.key} cannot be used: {error.strerror or error}"
            raise CannotStart(why, "--tls-cert and --tls-key take PEM files that belong together") from None
    if settings.own_ca and (settings.certificate is not None or settings.insecure):
        other = "--tls-cert" if settings.certificate is not None else "--insecure"
        raise CannotStart(f"--own-ca and {other} are two ways to do it", "give one of them")
    if _tls(settings) and settings.url.lower().startswith("http:"):
        raise CannotStart(
            f"--url {settings.url} is plain http, and it would listen with TLS",
            f"--url https{settings.url[4:]}; or --insecure if the network is really your own",
        )


def _own_ca(settings: Settings) -> bool:
    """Others shall reach us, and nothing was said of how."""
    beyond = not is_loopback(settings.host)
    return settings.own_ca or (beyond and settings.certificate is None and not settings.insecure)


def _tls(settings: Settings) -> bool:
    return _own_ca(settings) or settings.certificate is not None


async def _certificates(settings: Settings, registry: Registry, url: str) -> Shown | None:
    """With a certificate of files too there is an authority: nodes know us by it."""
    if not _tls(settings):
        return None
    try:
        files = settings.certificate, settings.key
        given = Certificates(files[0], files[1]) if files[0] is not None and files[1] is not None else None
        authority = Authority(await registry.secret(authority_of.SECRET, authority_of.made()))
        return Shown(
            authority, OwnCertificates(authority, settings.state / "ca", _hosts(settings, url)), given
        )
    except OSError as error:
        raise CannotStart(f"no TLS: {error.strerror or error}", "give another --dir") from None


def _known_by(certificates: Shown | None) -> KnownBy:
    if certificates is None:
        return KnownBy()
    authority = certificates.authority
    return KnownBy(authority.pem, authority.pin, everybody=certificates.given is None)


def _hosts(settings: Settings, url: str) -> tuple[str, ...]:
    """By which we are reached."""
    named = urlsplit(url).hostname or ""
    any_ = settings.host in ("0.0.0.0", "::")
    names = [named, "" if any_ else settings.host, socket.gethostname(), socket.getfqdn()]
    return tuple(name for name in (*names, "localhost", "127.0.0.1", "::1") if name)


def _name(settings: Settings, port: int) -> str:
    """Hosts made from one image may all be called the same; the addresses that they were given are not."""
    return urlsplit(settings.url).netloc or f"{socket.gethostname()}:{port}"


@contextlib.asynccontextmanager
async def control_plane(settings: Settings) -> AsyncIterator[Plane]:
    """A control plane that answers, until the block ends."""
    check(settings)
    _check_length(settings)
    _make(settings.state)
    host_file = _provider_file(settings)  # perhaps in there: it names programs
    clock = HostClock()
    listener = _listen(settings)
    url = settings.url or _url(settings, listener.getsockname()[1])
    _is_there(settings)
    _warn(settings)
    store, registry = await open_store(_database(settings))
    try:
        launch = await registry.secret("launch", secrets.token_bytes(32))
        fleet, behind = mark.fleet_of(launch), await _known(settings, store, mark.fleet_of(launch))
        certificates = await _certificates(settings, registry, url)
        shown = (lambda: certificates.hashes) if certificates is not None else frozenset[bytes]
        enrolment = Enrolment(registry, clock, launch, shown)
        providers = Providers(settings, enrolment, url, certificates, lambda: host_file.now.profiles)
        telemetry = Prometheus(lambda: host_file.now.telemetry)
        plane = Plane(
            settings.name or _name(settings, listener.getsockname()[1]),
            url,
            store,
            registry,
            enrolment,
            clock,
            providers.of,
            opening=partial(_opening, settings.pools),
            own_pools=[pool.name for pool in settings.pools],
            look=providers.for_a_look,
            ending=partial(providers.stop_all, settings.leaving) if settings.leaving else None,
            telemetry=telemetry,
            leader_ttl_ms=settings.leader_ttl_ms,
            behind=behind,
        )
        await first_token(settings, registry, clock)
        async with (
            _marking(settings, plane, fleet),
            _running(settings, plane, listener, providers, certificates),
        ):
            _note(settings, url)
            log.info("serving", url=url, name=plane.name)
            yield plane
        await telemetry.close()
    finally:
        listener.close()
        await store.close()


def _warn(settings: Settings) -> None:
    """Of what is allowed, and leaves secrets open to whoever is in between."""
    if hosts := unverified(_database(settings)):
        log.warning(
            "the database is reached over a network, and nothing proves that it is the right one",
            host=hosts,
            hint="add ?sslmode=verify-full to its URL: who is in between could read and change everything",
        )
    if not is_loopback(settings.host) and not _tls(settings):
        why = "plain http: unless a proxy ends TLS before it, all in between can read tokens and give orders"
        log.warning("no TLS", why=why, host=settings.host)


def _provider_file(settings: Settings) -> ProviderFile:
    def told(problem: FileProblem) -> None:
        log.error("the provider profiles cannot be used, and those read before hold on", why=problem.lines())

    def changed(file: HostFile) -> None:
        log.info("provider profiles read anew", profiles=sorted(file.profiles), telemetry=file.telemetry)

    named = settings.provider_profiles
    path = (named or settings.state / FILE).absolute()
    try:
        return ProviderFile(path, told, changed, must_be=named is not None)
    except FileProblem as problem:
        raise CannotStart("\n".join(problem.lines()), "put the file of provider profiles right") from None


def _database(settings: Settings) -> str:
    return settings.database or f"sqlite:///{settings.state / 'holdfast.db'}"


def _is_there(settings: Settings) -> None:
    """A database that is gone must not be made anew: its fleet would be forgotten, and go on running."""
    if settings.new_fleet:
        mark.drop(settings.state)
    path = sqlite_path(_database(settings))
    if path is not None and not path.exists() and mark.read(settings.state) is not None:
        raise CannotStart(f"{settings.state} had a fleet, and its database {path} is gone", RESTORE)


async def _known(settings: Settings, store: SqlStore, fleet: str) -> mark.Behind | None:
    """Compares the database with what this folder remembers."""
    found, held, length = mark.read(settings.state), await store.leader(), await store.length()
    if found is not None and found.fleet != fleet:
        what = "is of another fleet" if length else "is empty"
        raise CannotStart(f"{settings.state} had a fleet, and the database {what}", RESTORE)
    return mark.compare(found, held.generation, length, led=held.left_ms > 0)


@contextlib.asynccontextmanager
async def _marking(settings: Settings, plane: Plane, fleet: str) -> AsyncIterator[None]:
    """Renews the mark while we run, and once more at the end."""

    def renew() -> bool:
        for world in (plane.world, plane.last):  # of a term that has just ended the first is empty
            if world.leader.generation:
                mark.keep(settings.state, mark.of(world, fleet, plane.length))
                return True
        return False

    async def renewing() -> None:
        while True:
            await asyncio.sleep(mark.EVERY_S if renew() else SOON_S)

    task = asyncio.create_task(renewing())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        renew()


@contextlib.asynccontextmanager
async def _running(
    settings: Settings,
    plane: Plane,
    listener: socket.socket,
    providers: "Providers",
    certificates: Shown | None,
) -> AsyncIterator[None]:
    app = create_app(
        plane,
        access=Access(),
        limits=settings.limits,
        sink=AuditFile(settings.state / "audit.log"),
        authority=_known_by(certificates),
    )
    server = Server(
        uvicorn.Config(
            app,
            http=front(plane.hub.accept),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            headers=[("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store")],
            timeout_keep_alive=15,
            timeout_graceful_shutdown=CLOSE_S,
        ),
        certificates.context if certificates is not None else None,
    )
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[listener]))
        running = group.create_task(plane.run())
        supervising = group.create_task(providers.supervise())
        renewing = group.create_task(certificates.keep()) if certificates is not None else None
        try:
            yield
        finally:
            if renewing is not None:
                renewing.cancel()
            supervising.cancel()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            close(app)
            server.should_exit = True
            await asyncio.gather(serving, supervising, return_exceptions=True)
            await finish(app)
            await providers.close()


def _opening(pools: tuple[Pool, ...], world: World, now: Instant) -> Iterable[Event]:
    return [
        PoolApplied(at=now, pool=pool, actor=LOCAL) for pool in pools if world.pools.get(pool.name) != pool
    ]


class Providers:
    """Who serves a pool. Where the settings make the provider, there is one for each of them, made when first
    asked for."""

    def __init__(
        self,
        settings: Settings,
        enrolment: Enrolment,
        url: str,
        certificates: Shown | None = None,
        profiles: Callable[[], Mapping[str, Profile]] = dict,
    ) -> None:
        self.settings, self.enrolment, self.url, self.profiles = settings, enrolment, url, profiles
        self._certificates = certificates
        self.local = LocalProvider(
            settings.state,
            self._credentials,
            inherit_env=settings.inherit_env,
            may_start=settings.allow_local,
        )
        self._made: dict[tuple[tuple[str, str], ...], Provider] = {}
        self._new: asyncio.Queue[Supervised] = asyncio.Queue()

    def of(self, pool: Pool) -> Provider:
        pool = settled(pool, self.profiles())
        if pool.provider == "local":
            return self.local.of(pool)
        key = (("provider", pool.provider), *sorted(pool.settings.items()))
        if key not in self._made:
            provider = self._made[key] = made_of(pool, self._credentials)
            if isinstance(provider, Supervised):
                self._new.put_nowait(provider)
        return self._made[key]

    @contextlib.asynccontextmanager
    async def for_a_look(self, pool: Pool) -> AsyncIterator[Provider]:
        """One for a pool that may never be wanted: nobody keeps it, and it looks after nothing."""
        profiles = self.profiles()
        pool, written = settled(pool, profiles), pool
        check_free(written, profiles)
        if pool.provider == "local":
            self.local.check_allowed()
            yield self.local
            return
        provider = made_of(pool, self._credentials)
        try:
            yield provider
        finally:
            if isinstance(provider, Closing):
                await asyncio.gather(_closed(provider), return_exceptions=True)  # it was all for a look

    async def _credentials(self, node: str) -> Join:
        """The token carries the pin of our authority, which outlives every certificate."""
        where, token = urlsplit(self.url), self.enrolment.token_for(node)
        plain = is_plain(where.scheme, where.hostname or "")
        if self._certificates is not None:
            token = pin.with_pin(token, self._certificates.authority.pin)
        return Join((self.url,), token, insecure=plain)

    async def supervise(self) -> None:
        """Agents that ended before their nodes did are started again. And the profiles are looked at, so that
        a mistake in their file is told soon, and not when a pool needs them."""
        async with asyncio.TaskGroup() as group:
            group.create_task(_supervised(self.local))
            group.create_task(self._look_at_profiles())
            while True:
                group.create_task(_supervised(await self._new.get()))

    async def _look_at_profiles(self) -> None:
        while True:
            await asyncio.sleep(PROFILES_S)
            self.profiles()

    async def stop_all(self, leaving: Leaving, world: World) -> Iterable[str]:
        """Local nodes get time to end what runs on them; others are ended as their provider does it."""
        others = [pool for pool in world.pools.values() if pool.provider != "local"]
        both = (
            self.local.stop_all(CLOSE_S * 1000, leaving.hurry),
            leaving.end(world, others, self.of),
        )
        gone: list[str] = []
        for ended in await asyncio.gather(*both, return_exceptions=True):  # neither keeps the other from it
            if isinstance(ended, BaseException):
                raise ended
            gone += ended
        return gone

    async def close(self) -> None:
        """One that does not let go keeps nobody else from it."""
        closing = [provider for provider in self._made.values() if isinstance(provider, Closing)]
        await self.local.close()
        for ended in await asyncio.gather(*(_closed(each) for each in closing), return_exceptions=True):
            if isinstance(ended, Exception):
                log.error("a provider could not be closed", exc_info=ended)


async def _supervised(provider: Supervised) -> None:
    """Its mistakes end neither us nor its work."""

    async def once() -> None:
        await provider.supervise()

    while True:
        (ended,) = await asyncio.gather(once(), return_exceptions=True)
        if ended is None:
            return
        log.error("a provider stopped looking after its nodes", exc_info=ended, again_s=SUPERVISE_AGAIN_S)
        await asyncio.sleep(SUPERVISE_AGAIN_S)


async def _closed(provider: Closing) -> None:
    async with asyncio.timeout(CLOSE_S):
        await provider.close()


def _make(state: Path) -> None:
    """For nobody else on this machine. A folder that was there before is closed if there is something of ours
    in it: somebody's home that is given as --dir stays as it is. One that others made, or may write to, could
    have their token in it."""
    try:
        ours = any((state / name).exists() for name in ("token", "holdfast.db", "nodes"))
        private_folder.claim(state, ours=ours)
    except OSError as error:
        raise CannotStart(f"{state} cannot be used: {error.strerror}", "give another --dir") from None


def _check_length(settings: Settings) -> None:
    """Before anything is made in it."""
    try:
        sqlite_path(_database(settings))
    except Denied as error:
        hint = "look at --database" if settings.database else "give a shorter --dir: the database is in it"
        raise CannotStart(str(error), hint) from None


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            listener.bind((settings.host, settings.port or _port_before(settings)))
        except OSError:
            if settings.port:
                raise
            listener.bind((settings.host, 0))
        listener.listen(4096)
    except OSError as error:
        listener.close()
        where = f"{settings.host}:{settings.port}"
        raise CannotStart(f"cannot listen on {where}: {error.strerror}", "try another --port") from None
    return listener


def _port_before(settings: Settings) -> int:
    """Any port will do, but the last one is best: nodes that outlived a crash look for us there."""
    try:
        return urlsplit((settings.state / "url").read_text().strip()).port or 0
    except (OSError, ValueError):
        return 0


def _url(settings: Settings, port: int) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    if settings.host in ("0.0.0.0", "::"):
        host = socket.getfqdn()
    return f"{'https' if _tls(settings) else 'http'}://{host}:{port}"


def _note(settings: Settings, url: str) -> None:
    """The command line finds us by this file."""
    fresh = settings.state / ".url.new"
    fresh.write_text(url + "\n")
    fresh.replace(settings.state / "url")


async def first_token(settings: Settings, registry: Registry, clock: HostClock) -> None:
    path, file = settings.state / "token", sqlite_path(_database(settings))
    ours = file is not None and file.parent == settings.state
    try:
        await first_token_of.ensure(path, registry, clock.wall(), ours=ours, again=settings.new_token)
    except OSError as error:
        raise CannotStart(f"{path} cannot be written: {error.strerror}", "give another --dir") from None


def run(work: Callable[[asyncio.Event], Awaitable[None]], hurry: asyncio.Event | None = None) -> None:
    """Runs until it is done. The event it gets is set when somebody sends SIGINT or SIGTERM, or closes the
    terminal (SIGHUP, unless we were told not to mind); `hurry` at the second time; the third is not caught.
    Signals that come together are one: a terminal, `timeout` and whoever started us may all pass on the
    same."""
    import uvloop

    _more_files()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a client that leaves early is no reason to end

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        heard_at = -TOGETHER_S

        def asked() -> None:
            nonlocal heard_at
            before, heard_at = heard_at, loop.time()
            if heard_at - before < TOGETHER_S:
                return
            if not stop.is_set():
                stop.set()
                return
            if hurry is not None:
                hurry.set()
            loop.call_later(TOGETHER_S, no_longer)

        def no_longer() -> None:
            for number in numbers:
                loop.remove_signal_handler(number)

        for number in numbers:
            loop.add_signal_handler(number, asked)
        await work(stop)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@contextlib.contextmanager
def only_one(state: Path, what: str = "up") -> Iterator[None]:
    """Two of them in one folder would fight over what is in it: nodes, keys, budgets."""
    _make(state)
    with open(state / f"{what}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CannotStart(
                f"another `holdfast {what}` uses {state}",
                "stop it, or give this one another --dir and another --port (a gateway: --admin-port too)",
            ) from None
        yield


def _more_files() -> None:
    """A connection is a file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
