"""The certificate of a control plane while it runs, its authority, and the pin by which that is known."""

import contextlib
import socket
import ssl
import threading
from pathlib import Path

import pytest

from holdfast.control.authority import Authority, made
from holdfast.control.certificates import Certificates, OwnCertificates, fingerprint
from holdfast.wire import pin
from tests.certificates import self_signed

HOSTS = ("cp1.example.org", "127.0.0.1")


def shown(context: ssl.SSLContext, ca: str = "") -> bytes:
    """The certificate that a newcomer is shown, in a handshake of its own; with `ca` it is verified."""
    client = ssl.create_default_context(cadata=ca) if ca else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not ca:
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
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
    for file, content in zip(files, self_signed(name), strict=True):
        file.write_bytes(content)
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
    assert certificates.ca == authority.pem
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "ca").iterdir()} == {0o600}
    with pytest.raises(ssl.SSLCertVerificationError):
        shown(certificates.context, Authority(made()).pem)


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
