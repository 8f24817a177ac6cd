"""How a control plane is put together: its first token, and the providers of others."""

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import wiring
from holdfast.adapters.clock import HostClock
from holdfast.cli.commands.serve import serve
from holdfast.control.authority import Authority, made
from holdfast.control.certificates import OwnCertificates, Shown
from holdfast.control.enrol import Enrolment
from holdfast.control.plane import LEADER_TTL_MS
from holdfast.model.pool import Pool
from holdfast.ports.registry import Role, Token
from holdfast.sim.twins.registry import SimRegistry
from holdfast.wire import pin
from holdfast.wire.certificates import Certificates
from holdfast.wire.identity import hashed
from holdfast.wiring import CannotStart, Providers, Settings, first_token
from tests import certificates, planes
from tests.how_to import install
from tests.planes import PATIENCE_S, until
from tests.served import bearer

CLOCK = HostClock()
SHARED = "postgresql://db/shared"


async def test_the_first_token_is_in_a_file_and_lets_its_reader_in(tmp_path: Path) -> None:
    registry = SimRegistry()
    await first_token(Settings(tmp_path), registry, CLOCK)
    found = await registry.find(hashed((tmp_path / "token").read_text().strip()))
    assert found is not None
    assert found.role is Role.ADMIN
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    before = (tmp_path / "token").read_text()
    await first_token(Settings(tmp_path), registry, CLOCK)
    assert (tmp_path / "token").read_text() == before


async def test_a_first_token_that_could_not_be_written_down_is_made_again(tmp_path: Path) -> None:
    registry = SimRegistry()
    (tmp_path / "token").mkdir()
    with pytest.raises(CannotStart, match="token cannot be written"):
        await first_token(Settings(tmp_path), registry, CLOCK)
    assert await registry.tokens() == ()
    (tmp_path / "token").rmdir()
    await first_token(Settings(tmp_path), registry, CLOCK)
    assert await registry.find(hashed((tmp_path / "token").read_text().strip())) is not None


@pytest.mark.parametrize(("database", "hint"), [(False, "a shorter --dir"), (True, "look at --database")])
async def test_a_path_that_is_too_long_for_a_database_says_which_option_to_change(
    tmp_path: Path, *, database: bool, hint: str
) -> None:
    long = tmp_path.joinpath(*["x" * 200] * 3)
    settings = (
        Settings(state=tmp_path / "d", database=f"sqlite:///{long}/x.db") if database else Settings(long)
    )
    with pytest.raises(CannotStart, match="at most 500 bytes, this one has") as caught:
        async with wiring.control_plane(settings):
            pass
    assert hint in caught.value.hint
    assert not list(tmp_path.iterdir()), "nothing was made"


async def test_an_admin_that_has_expired_can_make_no_others(tmp_path: Path) -> None:
    registry = SimRegistry()
    await registry.add(Token("old", b"hash", Role.ADMIN, expires_at=CLOCK.wall() - 1))
    await first_token(Settings(tmp_path), registry, CLOCK)
    assert (tmp_path / "token").exists()


async def test_of_two_that_make_the_first_token_at_once_one_keeps_no_file(tmp_path: Path) -> None:
    registry = SimRegistry()
    await registry.add(Token("first", b"of another", Role.READ))  # no admin, but its id is taken
    await first_token(Settings(tmp_path, database=SHARED), registry, CLOCK)
    assert not (tmp_path / "token").exists()


async def test_beside_its_own_database_the_token_in_the_folder_always_works(tmp_path: Path) -> None:
    registry = SimRegistry()
    await first_token(Settings(tmp_path), registry, CLOCK)
    lost = (tmp_path / "token").read_text().strip()
    for spoil in ((tmp_path / "token").unlink, lambda: (tmp_path / "token").write_text("of another fleet\n")):
        spoil()
        await first_token(Settings(tmp_path), registry, CLOCK)
        assert await registry.find(hashed((tmp_path / "token").read_text().strip())) is not None
    assert await registry.find(hashed(lost)) is None, "it may be in wrong hands"
    assert len(await registry.tokens()) == 1


async def test_of_a_shared_database_only_the_first_folder_gets_a_token_unless_one_is_wanted(
    tmp_path: Path,
) -> None:
    registry, second = SimRegistry(), tmp_path / "second"
    second.mkdir()
    await first_token(Settings(tmp_path, database=SHARED), registry, CLOCK)
    await first_token(Settings(second, database=SHARED), registry, CLOCK)
    assert not (second / "token").exists()
    await first_token(Settings(second, database=SHARED, new_token=True), registry, CLOCK)
    assert await registry.find(hashed((second / "token").read_text().strip())) is not None
    assert await registry.find(hashed((tmp_path / "token").read_text().strip())) is None


async def test_a_token_file_that_others_could_read_is_closed_when_it_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old\n")
    (tmp_path / "token").chmod(0o644)
    await first_token(Settings(tmp_path), SimRegistry(), CLOCK)
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


# providers of others

MODULE = """
import asyncio
from holdfast.adapters.providers.join import JoinProvider

class Theirs(JoinProvider):
    looks, closed = 0, 0
    takes = None  # any settings, and not as few as those it is made of

    def __init__(self, settings, credentials):
        self.fails = "fails" in settings

    async def supervise(self):
        type(self).looks += 1
        if self.fails and self.looks == 1:
            raise ZeroDivisionError
        await asyncio.sleep(1000)

    async def close(self):
        if self.fails:
            raise ZeroDivisionError
        type(self).closed += 1
"""
PROJECT = """
[project]
name = "theirs"
version = "1"
entry-points."holdfast.providers".theirs = "supervising:Theirs"
"""


async def test_a_provider_that_fails_in_what_it_does_by_itself_ends_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "path", PROJECT, supervising=MODULE)
    monkeypatch.syspath_prepend(tmp_path / "path")
    monkeypatch.setattr(wiring, "SUPERVISE_AGAIN_S", 0.01)
    enrolment = Enrolment(SimRegistry(), CLOCK, b"")
    providers = Providers(Settings(tmp_path), enrolment, "http://127.0.0.1:1")
    first = providers.of(Pool("one", "theirs", (), settings={"fails": "yes"}))
    assert providers.of(Pool("two", "theirs", (), settings={"fails": "yes"})) is first, "settings make it"
    theirs: Any = type(providers.of(Pool("three", "theirs", ())))
    supervising = asyncio.create_task(providers.supervise())
    await until(lambda: theirs.looks == 3)
    assert not supervising.done()
    supervising.cancel()
    await asyncio.gather(supervising, return_exceptions=True)
    await providers.close()
    assert theirs.closed == 1


async def test_a_mistake_while_looking_after_local_nodes_ends_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "SUPERVISE_AGAIN_S", 0.01)
    providers = Providers(Settings(tmp_path), Enrolment(SimRegistry(), CLOCK, b""), "http://127.0.0.1:1")
    looks = list[int]()

    async def mistaken() -> None:
        looks.append(1)
        raise ZeroDivisionError

    monkeypatch.setattr(providers.local, "supervise", mistaken)
    supervising = asyncio.create_task(providers.supervise())
    await until(lambda: len(looks) == 3)
    assert not supervising.done()
    supervising.cancel()
    await asyncio.gather(supervising, return_exceptions=True)
    await providers.close()


async def test_the_file_of_profiles_is_looked_at_though_no_pool_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake in it is told when it is made, and not when the next pool is applied."""
    monkeypatch.setattr(wiring, "PROFILES_S", 0.01)
    looks = list[int]()

    def profiles() -> dict[str, Any]:
        looks.append(1)
        return {}

    enrolment = Enrolment(SimRegistry(), CLOCK, b"")
    providers = Providers(Settings(tmp_path), enrolment, "http://127.0.0.1:1", profiles=profiles)
    supervising = asyncio.create_task(providers.supervise())
    await until(lambda: len(looks) >= 3)
    supervising.cancel()
    await asyncio.gather(supervising, return_exceptions=True)
    await providers.close()


async def test_launched_nodes_are_given_what_outlives_every_certificate(tmp_path: Path) -> None:
    """They were given the leaf of the control plane: after its renewal they trusted nobody. EC2 takes a
    repeated request for the same one only if nothing differs."""
    authority, files = Authority(made()), (tmp_path / "cert.pem", tmp_path / "key.pem")
    certificates.write(files, certificates.self_signed("public"))
    own = OwnCertificates(authority, tmp_path / "ca", ("cp1.example.org",))
    enrolment = Enrolment(SimRegistry(), CLOCK, b"")
    for given in (None, Certificates(*files)):
        shown, url = Shown(authority, own, given), "https://cp1.example.org:7700"
        join = await Providers(Settings(tmp_path), enrolment, url, shown)._credentials("n1")
        assert own.renew()
        assert await Providers(Settings(tmp_path), enrolment, url, shown)._credentials("n1") == join
        assert (join.ca, join.insecure) == ("", False)
        assert pin.split(join.token) == (enrolment.token_for("n1"), authority.pin)
    plain = await Providers(Settings(tmp_path), enrolment, "http://10.0.0.1:7700")._credentials("n1")
    assert (plain.token, plain.insecure) == (enrolment.token_for("n1"), True)


@pytest.mark.parametrize(
    ("host", "url", "more", "tls"),
    [
        ("127.0.0.1", "", {}, False),
        ("127.0.0.1", "https://proxy.example.org", {}, False),
        ("0.0.0.0", "", {}, True),
        ("10.0.0.1", "https://cp1.example.org", {}, True),
        ("0.0.0.0", "https://proxy.example.org", {"insecure": True}, False),
        ("127.0.0.1", "", {"own_ca": True}, True),
    ],
)
def test_there_is_tls_beyond_loopback_unless_it_is_not_wanted(
    tmp_path: Path, host: str, url: str, more: dict[str, Any], tls: bool
) -> None:
    """On loopback with the URL of a proxy, the proxy ends TLS."""
    assert wiring._tls(Settings(tmp_path, host=host, url=url, **more)) == tls


def test_a_url_of_plain_http_and_tls_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="is plain http, and it would listen with TLS") as error:
        wiring.check(Settings(tmp_path, host="0.0.0.0", url="http://cp1:7700"))
    assert error.value.hint.startswith("--url https://cp1:7700")


def test_a_leader_is_one_for_as_long_as_the_command_says() -> None:
    said = inspect.signature(serve).parameters["leader_timeout"].default
    assert said * 1000 == LEADER_TTL_MS == Settings(Path()).leader_ttl_ms


# pools that are not wanted yet

LISTING = """
from holdfast.adapters.providers.settings import Kind, Settings
from holdfast.adapters.providers.join import JoinProvider
from holdfast.model.place import Place
from holdfast.model.pool import Offer
from holdfast.model.resources import Resources
from holdfast.ports.errors import Denied

class Listing(JoinProvider):
    closed, asked = 0, 0
    takes = Settings({"shut": Kind("anything", "true", str)})

    def __init__(self, settings, credentials):
        self.shut = "shut" in settings

    async def offers(self, pool):
        Listing.asked += 1
        if self.shut:
            raise Denied("nobody gave us credentials")
        return (Offer("large", Place("listing", "here", "z"), Resources(64_000, 65_536)),)

    async def close(self):
        Listing.closed += 1
"""
POOL = "kind: pool\nname: p\nmax: 2\nlists_offers: true\nprovider: "
SERVICE = "\n---\nkind: service\nname: big\ncpus: 32\ncommand: sleep 9\n"


@asynccontextmanager
async def asking(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    """A control plane on a machine with two providers of others: one of them is nowhere to be found."""
    monkeypatch.syspath_prepend(folder)
    points = '[project.entry-points."holdfast.providers"]\nlisting = "listing:Listing"\nlost = "no.where:At"'
    install(folder, f'[project]\nname = "theirs"\nversion = "1"\n{points}', listing=LISTING)
    settings = Settings(folder / "state", port=0, leader_ttl_ms=planes.LEADER_TTL_MS)
    async with wiring.control_plane(settings) as plane:
        await until(lambda: plane.leading)
        headers = bearer((folder / "state" / "token").read_text().strip())
        async with httpx.AsyncClient(base_url=plane.url, headers=headers, timeout=60) as client:
            yield client


async def test_a_pool_whose_provider_cannot_be_had_here_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was applied, and nobody heard why it never had a node."""
    async with asking(tmp_path, monkeypatch) as asked:
        for provider, settings, why in (
            ("lost", "", "the provider lost cannot be loaded: No module named 'no'"),
            ("ec2", "\nsettings: { regions: a-1, image: ami-1, install: x }", "pip install 'holdfast[aws]'"),
        ):
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(sys.modules, "boto3", None)
                planned = (await asked.post("/v1/plan", content=POOL + provider + settings)).json()
                refused = await asked.post("/v1/apply", content=POOL + provider + settings)
            assert planned["changes"][0].startswith("pool p: would be refused: ")
            assert why in planned["changes"][0]
            assert refused.status_code == 409
            assert why in refused.json()["problems"][0]
            assert "nothing was changed" in refused.json()["hint"]
        assert (await asked.get("/v1/pools")).json() == []


async def test_a_provider_is_asked_what_it_offers_when_its_pool_is_applied_and_not_by_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(tmp_path, monkeypatch) as asked:
        shut = POOL + "listing\nsettings: { shut: true }" + SERVICE
        planned = (await asked.post("/v1/plan", content=shut)).json()
        assert "its provider was not contacted: its settings are not applied" in planned["changes"][0]
        (waits,) = planned["pending"]
        assert "is not known" in waits
        assert "no offer" not in waits
        assert "join by themselves" not in waits
        assert sys.modules["listing"].Listing.asked == 0
        assert sys.modules["listing"].Listing.closed == 1, "what was made for a look is let go again"
        assert (await asked.post("/v1/apply", content=shut)).status_code == 200

        async def told(kind: str, name: str) -> str:
            return str((await asked.get(f"/v1/explain/{kind}", params={"name": name})).json())

        for kind, name in (("pool", "p"), ("workload", "big")):
            async with asyncio.timeout(PATIENCE_S):
                while "could not be asked what it offers: nobody gave us" not in await told(kind, name):
                    await asyncio.sleep(0.1)
            assert "join by themselves" not in await told(kind, name)
