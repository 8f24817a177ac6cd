"""The link over TLS: whom the agent trusts."""

import asyncio
import contextlib
import datetime
import ssl
from pathlib import Path

import pytest

from holdfast.agent.home import Home, Unusable
from holdfast.agent.link import Link, NoLink, connect
from holdfast.agent.settings import read, read_url
from holdfast.agent.trust import Trust, tls_for
from holdfast.control import authority as control_authority
from holdfast.control.authority import Authority, made
from holdfast.wire import pin
from holdfast.wire.identity import signed
from holdfast.wire.messages import PROTOCOL, Beat, Moved
from tests.agent_rig import agent, refused
from tests.certificates import self_signed
from tests.hub_twin import HubTwin, desired, lived, wanted


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that signed itself, for 127.0.0.1, with its key in the same file."""
    file = tmp_path_factory.mktemp("tls") / "hub.pem"
    file.write_bytes(b"".join(self_signed("hub")))
    return file


def server(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.mark.parametrize("insecure", [False, True])
@lived
async def test_a_control_plane_is_trusted_by_its_authority_or_by_order(
    tmp_path: Path, certificate: Path, insecure: bool
) -> None:
    words = ("--insecure",) if insecure else ("--ca", str(certificate))
    async with HubTwin(server(certificate)) as hub, agent(tmp_path, hub.url, *words):
        line = await hub.welcomed()
        await line.next(Beat)
        line.say(desired(1, wanted("web/0.1")))
        await line.report("web/0.1", "started")


@lived
async def test_a_certificate_of_nobody_we_know_ends_a_newcomer(tmp_path: Path, certificate: Path) -> None:
    async with HubTwin(server(certificate)) as hub, refused(tmp_path, hub.url) as problem:
        pass
    assert "certificate" in str(problem[0])
    assert "--ca" in problem[0].hint
    assert hub.lines == []


@lived
async def test_who_joined_without_tls_may_be_led_to_it(tmp_path: Path, certificate: Path) -> None:
    words = ("--ca", str(certificate))
    async with HubTwin() as old, HubTwin(server(certificate)) as new, agent(tmp_path, old.url, *words):
        line = await old.line()
        await line.challenge()
        line.say(Moved(new.url))
        await (await new.welcomed()).next(Beat)


def test_a_file_without_certificates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("nothing")
    words = ("--join", "https://127.0.0.1:1", "--ca", str(tmp_path / "ca"))
    with pytest.raises(Unusable, match="cannot be used") as problem:
        tls_for(read(words, {}))
    assert "PEM" in problem.value.hint


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(made())


def of(authority: Authority, file: Path) -> ssl.SSLContext:
    file.write_bytes(b"".join(authority.certificate(("cp.example.org",))))
    return server(file)


@lived
async def test_over_tls_nobody_talks_an_agent_out_of_signing_what_it_was_shown(
    tmp_path: Path, authority: Authority
) -> None:
    """One in between could claim to speak the protocol of before, which signs no channel."""
    async with (
        HubTwin(of(authority, tmp_path / "hub.pem")) as hub,
        agent(tmp_path / "n1", hub.url, "--insecure") as _,
    ):
        hello = await (await hub.line()).challenge(protocol=1, oldest=1)
    assert hello.protocol == PROTOCOL
    assert len(hello.channel) == 32
    assert not signed(hello.key, hello.signature, b"another nonce", hello.node, hello.instance, hello.channel)


@lived
async def test_an_agent_that_is_sent_on_trusts_there_whom_it_trusts_here(
    tmp_path: Path, authority: Authority
) -> None:
    """A control plane that was broken into, or lies, leads to nobody outside the fleet."""
    elsewhere, root = Authority(made()), tmp_path / "n1"
    root.mkdir()
    (root / "ca.pem").write_text(authority.pem)
    async with (
        HubTwin(of(authority, tmp_path / "ours.pem")) as ours,
        HubTwin(of(elsewhere, tmp_path / "theirs.pem")) as theirs,
        HubTwin(of(authority, tmp_path / "next.pem")) as following,
        agent(root, ours.url),
    ):
        line = await ours.line()
        await line.challenge()
        line.say(Moved(theirs.url, (theirs.url,)))
        line.cut()
        line = await ours.line()
        await line.challenge()
        line.say(Moved(following.url, (following.url,)))
        await (await following.welcomed()).next(Beat)
        assert theirs.lines == [], "no hello, and no token"


class Mute:
    """Listens, and says nothing."""

    def opened(self, link: Link) -> None:
        raise AssertionError("it was not to be trusted")

    def receive(self, message: object) -> None: ...

    def closed(self, why: str) -> None: ...


@pytest.mark.parametrize(("days", "what"), [(-3, "is not yet valid"), (200, "has expired")])
@lived
async def test_a_node_whose_clock_is_wrong_says_so_and_tries_again(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch, days: int, what: str
) -> None:
    """Told as for an authority that is not trusted, somebody would look for another --ca. A hint would end a
    first start for good, and clocks are often put right shortly after a boot."""
    monkeypatch.setattr(control_authority, "BEFORE", datetime.timedelta(days=days))
    if days > 0:
        monkeypatch.setattr(control_authority, "CERTIFICATE_DAYS", -100)
    async with HubTwin(of(authority, tmp_path / "hub.pem")) as hub:
        with pytest.raises(NoLink, match=what) as problem:
            await connect(read_url(hub.url), pin.context(authority.pem), Mute())
    assert "Is the clock of this machine right? It says 20" in str(problem.value)
    assert problem.value.hint == ""


def test_an_authority_that_was_kept_and_is_damaged_is_not_replaced_by_what_the_system_trusts(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path / "n1")
    home.enter()
    home.keep("ca.pem", "garbage")
    home.keep("joined", "https://127.0.0.1:1")
    trust = Trust(read(("--join", "https://127.0.0.1:1"), {}), home)
    with pytest.raises(NoLink, match="is damaged") as problem:
        asyncio.run(trust.to(read_url("https://127.0.0.1:1")))
    assert "--ca-pin" in problem.value.hint
    home.leave()


@pytest.mark.parametrize("spoilt", ["ca.pem", "ca.pin"])
def test_what_was_kept_and_does_not_fit_the_pin_is_asked_for_again(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    asked: list[str] = []

    def fetch(host: str, port: int, wanted: str) -> str:
        asked.append(wanted)
        return authority.pem

    monkeypatch.setattr(pin, "fetch", fetch)
    home, url = Home(tmp_path / "n1"), read_url("https://127.0.0.1:1")
    home.enter()
    settings = read(("--join", str(url), "--token", pin.with_pin("hfj_a", authority.pin)), {})
    for _ in range(2):
        assert asyncio.run(Trust(settings, home).to(url)) is not None
    assert asked == [authority.pin]
    home.keep(spoilt, "garbage")
    assert asyncio.run(Trust(settings, home).to(url)) is not None
    assert asked == [authority.pin] * 2
    assert (home.read("ca.pem"), home.read("ca.pin")) == (authority.pem.strip(), authority.pin)
    home.leave()


async def test_an_authority_that_answers_for_ever_is_not_waited_for(
    tmp_path: Path, authority: Authority
) -> None:
    """Byte by byte, or without an end: the bounds are of all of it."""

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A lost TLS connection takes what is written, and says nothing for a while."""
        with contextlib.suppress(OSError):
            for _ in range(64):
                writer.write(b"x" * 65_536)
                await writer.drain()
                await asyncio.sleep(0)
        writer.transport.abort()

    for answer, error in ((drip, OSError), (pour, pin.Untrusted)):
        listening = await asyncio.start_server(
            answer, "127.0.0.1", 0, ssl=of(authority, tmp_path / f"{answer.__name__}.pem")
        )
        port, within_s = listening.sockets[0].getsockname()[1], 0.5 if answer is drip else 60.0
        with pytest.raises(error):
            await asyncio.to_thread(pin.fetch, "127.0.0.1", port, authority.pin, within_s)
        listening.close()
