"""An authority and a certificate of it, made for a test, as files that programs are given."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class TlsFiles:
    """The authority's certificate, and that of a server with its key."""

    authority: Path
    certificate: Path
    key: Path

    @property
    def trusting(self) -> ssl.SSLContext:
        """What trusts that authority and no other one."""
        return ssl.create_default_context(cafile=str(self.authority))

    @property
    def serving(self) -> ssl.SSLContext:
        """The TLS of the server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def make_tls_files(folder: Path, host: str = "localhost") -> TlsFiles:
    """Files for a server with this name, and on 127.0.0.1; skips without `cryptography`."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.now(UTC)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def builder(subject: str, key: Any) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("an authority of a test"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=2))
        )

    root, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    of_root = x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key())
    authority = (
        builder("an authority of a test", root)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(root.public_key()), critical=False)
        .sign(root, hashes.SHA256())
    )
    names = [x509.DNSName(host), x509.IPAddress(ip_address("127.0.0.1"))]
    certificate = (
        builder(host, own)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(of_root, critical=False)
        .sign(root, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    files = TlsFiles(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    files.authority.write_bytes(authority.public_bytes(pem))
    files.certificate.write_bytes(certificate.public_bytes(pem))
    files.key.touch(0o600)
    files.key.write_bytes(
        own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files
