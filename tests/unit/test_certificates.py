"""The certificate of a control plane while it runs, its authority, and the pin by which that is known."""

import contextlib
import re
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from structlog.testing import capture_logs

from holdfast.control.authority import Authority, made
from holdfast.control.certificates import OwnCertificates, Shown
from holdfast.ports import secret_file
from holdfast.wire import pin
from holdfast.wire.certificates import Certificates, fingerprint
from tests.certificates import self_signed, write

HOSTS = ("cp1.example.org", "127.0.0.1")


def shown(context: ssl.SSLContext, ca: str = "") -> bytes:
    """The certificate that a newcomer is shown, in a handshake of its own; with `ca` it is verified."""
    client = ssl.create_default_context(cadata=ca) if ca else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not ca:
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    return met(context, client)


def met(context: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    here, there = socket.socketpair()

    def serve() -> None:
        with contextlib.suppress(OSError):  # a client that does not trust it says so
            context.wrap_socket(there, server_side=True).close()

    serving = threading.Thread(target=serve)
    serving.start()
    with here, client.wrap_socket(here, server_hostname="127.0.0.1") as line:
        found = line.getpeercert(binary_form=True)
    serving.join()
    assert found is not None
    return found


def written(folder: Path, name: str) -> tuple[Path, Path]:
    files = folder / "cert.pem", folder / "key.pem"
    write(files, self_signed(name))
    return files


def test_a_renewed_file_is_shown_from_the_next_handshake_on(tmp_path: Path) -> None:
    certificates = Certificates(*written(tmp_path, "first"))
    before = shown(certificates.context)
    certificates.look()
    assert shown(certificates.context) == before
    written(tmp_path, "second")
    certificates.look()
    after = shown(certificates.context)
    assert after != before
    assert certificates.shown == {fingerprint(before), fingerprint(after)}, "hellos of just before are good"
    written(tmp_path, "third")
    certificates.look()
    assert fingerprint(before) not in certificates.shown


def test_a_renewal_with_another_kind_of_key_leaves_nothing_of_the_one_before(tmp_path: Path) -> None:
    """OpenSSL keeps one of each kind: most clients would be shown the old one for ever."""
    certificates = Certificates(*written(tmp_path, "elliptic"))
    before = shown(certificates.context)
    write(
        (tmp_path / "cert.pem", tmp_path / "key.pem"),
        self_signed("rsa", rsa.generate_private_key(65537, 2048)),
    )
    certificates.look()
    after = shown(certificates.context)
    assert after != before
    assert after == ssl.PEM_cert_to_DER_cert((tmp_path / "cert.pem").read_text())


@pytest.mark.parametrize("how", ["other key", "garbage", "gone"])
def test_a_renewal_that_went_wrong_leaves_the_one_before(tmp_path: Path, how: str) -> None:
    certificate, key = written(tmp_path, "first")
    certificates = Certificates(certificate, key)
    before = shown(certificates.context)
    if how == "other key":
        certificate.write_bytes(self_signed("second")[0])
    elif how == "garbage":
        certificate.write_bytes(b"nonsense\n")
    else:
        key.unlink()
    certificates.look()
    assert shown(certificates.context) == before
    written(tmp_path, "good again")
    certificates.look()
    assert shown(certificates.context) != before


def test_one_of_our_own_authority_is_good_for_its_names_and_renewed(tmp_path: Path) -> None:
    authority = Authority(made())
    certificates = OwnCertificates(authority, tmp_path / "ca", HOSTS)
    before = shown(certificates.context, authority.pem)
    assert certificates.renew()
    after = shown(certificates.context, authority.pem)
    assert before != after
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "ca").iterdir()} == {0o600}
    with pytest.raises(ssl.SSLCertVerificationError):
        shown(certificates.context, Authority(made()).pem)


def test_one_of_our_own_is_due_by_the_clock_of_the_wall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time that a machine slept counts, and one that was made by a clock that was wrong is made anew."""
    now = 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    certificates = OwnCertificates(Authority(made()), tmp_path / "ca", HOSTS)
    assert not certificates.is_due()
    now += 59 * 86_400
    assert not certificates.is_due()
    now += 2 * 86_400
    assert certificates.is_due()
    assert certificates.renew()
    assert not certificates.is_due()
    now -= 3_600
    assert certificates.is_due()


def test_a_certificate_is_made_whatever_the_machine_is_called() -> None:
    hosts = ("bücher.example", "a" * 70, "my_host", "fe80::1%eth0", "..", "127.0.0.1", "::1", "localhost")
    chain, _ = Authority(made()).certificate(hosts)
    names = x509.load_pem_x509_certificate(chain).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    found = [str(name.value) for name in names.value]
    assert found == ["xn--bcher-kva.example", "my_host", "fe80::1", "127.0.0.1", "::1", "localhost"]


def test_an_authority_has_no_end_and_begins_before_any_clock_that_is_right() -> None:
    found = x509.load_pem_x509_certificate(Authority(made()).pem.encode())
    assert found.not_valid_after_utc.year == 9999
    assert found.not_valid_before_utc.year == 2025


def test_who_has_the_pin_is_shown_our_own_beside_one_of_files(tmp_path: Path) -> None:
    """A publicly signed certificate that is introduced later locks out nobody."""
    authority = Authority(made())
    own = OwnCertificates(authority, tmp_path / "ca", ("cp1.example.org",))
    given = Certificates(*written(tmp_path, "public"))
    both = Shown(authority, own, given)
    world, fleet = shown(both.context), met(both.context, pin.context(authority.pem))
    assert {fingerprint(world), fingerprint(fleet)} == both.hashes
    assert world != fleet
    written(tmp_path, "renewed")
    given.look()
    assert own.renew()
    assert shown(both.context) != world
    assert met(both.context, pin.context(authority.pem)) != fleet


def test_whoever_has_the_pin_is_told_from_another_fleet_and_asks_for_no_host_name(tmp_path: Path) -> None:
    """A machine may be reached by an address that its control plane knows nothing of."""
    authority = Authority(made())
    own = OwnCertificates(authority, tmp_path / "ca", ("cp1.example.org",))
    met(own.context, pin.context(authority.pem))
    with pytest.raises(ssl.SSLCertVerificationError):
        met(own.context, pin.context(Authority(made()).pem))


def test_a_key_that_others_can_read_is_not_taken_at_the_start_nor_later(tmp_path: Path) -> None:
    certificate, key = written(tmp_path, "first")
    key.chmod(0o644)
    with pytest.raises(secret_file.Exposed):
        Certificates(certificate, key)
    key.chmod(0o600)
    certificates = Certificates(certificate, key)
    before = shown(certificates.context)
    written(tmp_path, "second")
    key.chmod(0o644)
    certificates.look()
    assert shown(certificates.context) == before
    key.chmod(0o600)
    certificates.look()
    assert shown(certificates.context) != before


def test_a_key_with_a_passphrase_is_refused_and_not_asked_for_on_the_terminal(tmp_path: Path) -> None:
    certificate, key = written(tmp_path, "first")
    found = serialization.load_pem_private_key(key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"x")
    key.write_bytes(
        found.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    )
    with pytest.raises(ssl.SSLError):
        Certificates(certificate, key)


def test_another_authority_than_the_folder_had_is_told(tmp_path: Path) -> None:
    """The database was put back from before it had one: nobody would know why the nodes stay away."""
    before, now = Authority(made()), Authority(made())
    OwnCertificates(before, tmp_path / "ca", HOSTS)
    with capture_logs() as told:
        OwnCertificates(before, tmp_path / "ca", HOSTS)
        assert told == []
        OwnCertificates(now, tmp_path / "ca", HOSTS)
    assert [(each["log_level"], each["before"], each["now"]) for each in told] == [
        ("error", before.pin, now.pin)
    ]


# what an attacker answers to the one question that is asked before anybody is trusted


def answered(answer: bytes, known: str) -> str:
    return pin._checked(b"HTTP/1.1 200 OK\r\n\r\n" + answer, known)


def test_a_certificate_of_the_right_key_with_other_dates_is_not_kept() -> None:
    """The pin is of the key, so somebody in between could send one that nobody would trust later."""
    authority = Authority(made())
    der = ssl.PEM_cert_to_DER_cert(authority.pem)
    ends = re.findall(rb"\d{12}Z", der)[1]
    forged = ssl.DER_cert_to_PEM_cert(der.replace(ends, b"20" + ends[2:]))
    assert pin.pin_of(forged) == authority.pin
    with pytest.raises(pin.Untrusted, match="changed on the way"):
        answered(forged.encode(), authority.pin)
    assert answered(authority.pem.encode(), authority.pin) == authority.pem


def test_of_several_certificates_only_the_one_of_the_pin_counts() -> None:
    ours, theirs = Authority(made()), Authority(made())
    assert answered((ours.pem + theirs.pem).encode(), ours.pin) == ours.pem
    with pytest.raises(pin.Untrusted, match="another fleet, or somebody in between"):
        answered((theirs.pem + ours.pem).encode(), ours.pin)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense",
        b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://elsewhere/ca.pem\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\n\r\n-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----",
        b"HTTP/1.1 200 OK\r\n\r\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * pin.ANSWER_MAX,
    ],
    ids=["nothing", "nonsense", "a redirect", "a refusal", "no certificate", "too much"],
)
def test_an_answer_that_is_no_authority_is_none(answer: bytes) -> None:
    """A redirect is not followed: where it leads, nobody vouches for."""
    with pytest.raises(pin.Untrusted):
        pin._checked(answer, Authority(made()).pin)


def test_an_authority_that_is_read_again_is_the_same_and_another_is_not() -> None:
    kept = made()
    assert Authority(kept).pin == Authority(kept).pin == pin.pin_of(Authority(kept).pem)
    assert Authority(made()).pin != Authority(kept).pin


def test_a_token_carries_the_pin_and_the_secret_alone_goes_over_the_wire() -> None:
    known = Authority(made()).pin
    assert pin.split(pin.with_pin("hfj_a-b_c", known)) == ("hfj_a-b_c", known)
    assert pin.split(pin.with_pin("hfj_a", "")) == pin.split(" hfj_a\n") == ("hfj_a", "")
    assert pin.split("hfj_a.short") == ("hfj_a", "")


def test_a_pin_is_read_as_it_is_written_and_nothing_else_is_one() -> None:
    known = Authority(made()).pin
    assert pin.read_pin(known.upper().replace("SHA256", "sha256")) == known
    assert pin.read_pin(known.removeprefix("sha256:")) == known
    for wrong in ("", "sha256:", "sha256:zz", known + "0", "sha512:" + "0" * 64):
        with pytest.raises(ValueError, match="64 hexadecimal digits"):
            pin.read_pin(wrong)
    with pytest.raises(ValueError, match="64 hexadecimal digits") as error:
        pin.read_pin("hfj_a-token-by-mistake")
    assert "hfj" not in str(error.value), "it would be in a log"
