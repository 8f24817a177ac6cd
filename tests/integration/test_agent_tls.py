"""The link over TLS: whom the agent trusts."""

import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.agent.agent import tls_for
from holdfast.agent.home import Unusable
from holdfast.agent.settings import read
from holdfast.wire.messages import Beat, Moved
from tests.agent_rig import agent, refused
from tests.hub_twin import HubTwin, desired, lived, wanted


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that signed itself, for 127.0.0.1, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hub")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    file = tmp_path_factory.mktemp("tls") / "hub.pem"
    file.write_bytes(made.public_bytes(pem) + key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
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
