"""A certificate authority of the fleet's own, so that TLS needs nothing that is not there.

Made by whichever control plane first needs one, and kept with the other secrets that all control planes of a
database share: an agent that trusts one of them can follow to the next leader. That puts its key where the
secret of launched nodes and the hashes of tokens are; whoever can write there gives every node its orders
anyway, and whoever can only read it could from then on pretend to be a control plane to those in between. A
key in a file that is copied by hand from machine to machine was refused: it would be copied by mail.

It signs nothing but the certificates of control planes: for servers, for 90 days, for the names by which a
control plane is reached. A third of that before the end a new one is made (`certificates`). The authority
itself has no end (RFC 5280, 4.1.2.5): nodes know it by its key, nobody renews it, and one that ended would
lock out a fleet on a day that nobody has in mind.
"""

import datetime
import ipaddress
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.wire.pin import pin_of

SECRET = "ca"  # its name among the shared secrets
BEGINS = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)  # whatever the clock says that it is made by
NO_END = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
CERTIFICATE_DAYS = 90
BEFORE = datetime.timedelta(days=1)  # the clocks of others may be slow
PEM = serialization.Encoding.PEM


def made() -> bytes:
    """Key and certificate, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"holdfast {x509.random_serial_number():x}"[:24])
    certificate = _begun(name, name, key.public_key(), BEGINS, NO_END)
    usage = _usage(signs=True)
    certificate = certificate.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = certificate.add_extension(usage, critical=True)
    signed = certificate.sign(key, hashes.SHA256())
    return _pem(key) + signed.public_bytes(PEM)


class Authority:
    def __init__(self, pem: bytes) -> None:
        key = serialization.load_pem_private_key(pem, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key, self._certificate = (
            key,
            x509.load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERT") :]),
        )
        self.pem = self._certificate.public_bytes(PEM).decode()
        self.pin = pin_of(self.pem)

    def certificate(self, hosts: Iterable[str]) -> tuple[bytes, bytes]:
        """A new one for these names and addresses, with the authority's behind it; and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = list(dict.fromkeys(hosts))
        sans = [found for name in names if (found := _san(name)) is not None]
        now = datetime.datetime.now(datetime.UTC)
        ends = now + datetime.timedelta(days=CERTIFICATE_DAYS)
        made = _begun(_name(names[0][:64]), self._certificate.subject, key.public_key(), now - BEFORE, ends)
        made = made.add_extension(x509.SubjectAlternativeName(sans), critical=False)
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        made = made.add_extension(_usage(signs=False), critical=True)
        made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        made = made.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        signed = made.sign(self._key, hashes.SHA256())
        return signed.public_bytes(PEM) + self.pem.encode(), _pem(key)


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begins: datetime.datetime,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _san(host: str) -> x509.GeneralName | None:
    """None: a machine may be called by what is no name in a network, and is known by the authority anyway."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        pass
    try:
        return x509.DNSName(host.encode("idna").decode("ascii"))
    except (UnicodeError, ValueError):
        return None


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
