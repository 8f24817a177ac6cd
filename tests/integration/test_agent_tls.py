"""The link over TLS: whom the agent trusts."""

import ssl
from pathlib import Path

import pytest

from holdfast.agent.home import Unusable
from holdfast.agent.settings import read
from holdfast.agent.trust import tls_for
from holdfast.wire.messages import Beat, Moved
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
