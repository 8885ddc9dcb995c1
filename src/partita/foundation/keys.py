"""Keys and certificates: one authority per federation, one certificate for the server, one key per site."""

import base64
import datetime
import hashlib
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partita.errors import ConfigError, StorageError, reason
from partita.foundation.files import read_file

DAYS = 825
# Bytes of a file with a key or a certificate.
MOST_KEY = 100_000


def write_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """ca.crt, which everybody gets; server.pem and server.key, which stay at the server.

    The authority's own key is not kept: nobody can sign another server with it. A new server certificate means a new
    authority, and a new ca.crt for every site.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = _name("Partita federation")
    authority = (
        _builder(issuer, issuer, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    server = (
        _builder(_name(hosts[0]), issuer, server_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = _encodings().PEM
    _write(folder / "ca.crt", authority.public_bytes(pem))
    _write(folder / "server.pem", server.public_bytes(pem))
    _write(folder / "server.key", _private(server_key, "PKCS8"))


def write_site_key(private: Path, public: Path) -> None:
    """What a site proves with that it is itself, and what the server knows it by."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import PublicFormat

    key = ec.generate_private_key(ec.SECP384R1())
    _write(private, _private(key, "OpenSSH"))
    _write(public, key.public_key().public_bytes(_encodings().OpenSSH, PublicFormat.OpenSSH))


def sign(private: Path, content: bytes) -> bytes:
    """The signature of bytes by the key in a file."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return bytes(_load_private(private).sign(content, ec.ECDSA(hashes.SHA256())))


def is_signed_by(public: bytes, content: bytes, signature: bytes) -> bool:
    """Whether the owner of a public key, however it was written, has signed bytes."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = _load_public(public)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
        return False
    return True


def read_key(path: Path) -> bytes:
    """A key, a certificate or a secret, from a file of the size that these have."""
    try:
        return read_file(path, MOST_KEY)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from None


def read_public_key(path: Path) -> bytes:
    """A site's public key, however it was written, as `canonical_key` gives it."""
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        return canonical_key(read_key(path))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: is no public key ({reason(error)}): use the one that came with the site") from None


def read_own_public_key(private: Path) -> bytes:
    """The other half of a private key, as `canonical_key` gives it."""
    from cryptography.hazmat.primitives.serialization import PublicFormat

    public = _load_private(private).public_key()
    return bytes(public.public_bytes(_encodings().DER, PublicFormat.SubjectPublicKeyInfo))


def show_key(key: bytes) -> str:
    """A public key, however it was written, as SSH writes it in a line."""
    from cryptography.hazmat.primitives.serialization import PublicFormat

    return bytes(_load_public(key).public_bytes(_encodings().OpenSSH, PublicFormat.OpenSSH)).decode("ascii")


def fingerprint(key: bytes) -> str:
    """What people compare of a public key."""
    return f"SHA256:{base64.b64encode(hashlib.sha256(canonical_key(key)).digest()).decode()}"


def canonical_key(key: bytes) -> bytes:
    """A public key, however it was written."""
    return _public(key, _encodings().DER)


def write_pem(key: bytes) -> bytes:
    """A public key as Flower takes it."""
    return _public(key, _encodings().PEM)


def _public(key: bytes, encoding: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import PublicFormat

    return bytes(_load_public(key).public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo))


def _load_public(key: bytes) -> Any:
    """A public key as PEM, as DER or as SSH writes it."""
    from cryptography.hazmat.primitives.serialization import (
        load_der_public_key,
        load_pem_public_key,
        load_ssh_public_key,
    )

    if key.lstrip().startswith(b"-----BEGIN"):
        return load_pem_public_key(key)
    return load_der_public_key(key) if key.startswith(b"\x30") else load_ssh_public_key(key)


def _load_private(path: Path) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(read_key(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: is no private key ({reason(error)}): use the one that came with the site") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: is no key of an elliptic curve: make one with ssh-keygen -t ecdsa -b 384")
    return key


def write_secret(path: Path) -> None:
    _write(path, os.urandom(32))


def _encodings() -> Any:
    from cryptography.hazmat.primitives.serialization import Encoding

    return Encoding


def _private(key: Any, form: str) -> bytes:
    from cryptography.hazmat.primitives.serialization import NoEncryption, PrivateFormat

    return bytes(key.private_bytes(_encodings().PEM, getattr(PrivateFormat, form), NoEncryption()))


def _name(common: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, common[:64])])


def _builder(subject: Any, issuer: Any, public_key: Any) -> Any:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _usage(signs: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _alternative(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
