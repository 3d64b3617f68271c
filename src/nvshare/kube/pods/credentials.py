"""How to reach the API server: as the pod we are in, or as a kubeconfig says."""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nvshare.kube.pods.api import Access

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NoAccess(Exception):
    """It cannot be reached; the text says what to do."""


def in_cluster(host: str, port: int, directory: Path = SERVICE_ACCOUNT) -> Access:
    """As the service account of our pod; its token is read for each request, because it is rotated."""
    try:
        tls = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    except (OSError, ssl.SSLError) as error:
        raise NoAccess(f"{directory / 'ca.crt'} cannot be used ({error}); is the service account mounted?") from error
    return Access(host, port, tls, lambda: (directory / "token").read_text().strip())


def from_kubeconfig(path: Path) -> Access:
    """The current context of a kubeconfig: certificates or a token; programs that make tokens are not called."""
    try:
        return _access(_parse(path.read_text()), path.absolute().parent)
    except (OSError, ValueError, KeyError, TypeError, ssl.SSLError, binascii.Error) as error:
        raise NoAccess(f"{path} cannot be used as a kubeconfig: {error!s:.300}") from error


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        import yaml
    except ImportError:
        raise ValueError("reading YAML needs: pip install 'nvshare[kube]'") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _access(kubeconfig: Any, directory: Path) -> Access:
    context = _named(kubeconfig["contexts"], kubeconfig["current-context"])["context"]
    cluster = _named(kubeconfig["clusters"], context["cluster"])["cluster"]
    user = _named(kubeconfig["users"], context["user"]).get("user") or {}
    if "exec" in user or "auth-provider" in user:
        raise ValueError("its user is made by a program; use one with a certificate or a token")
    server = urlsplit(cluster["server"])
    if server.scheme not in ("http", "https") or not server.hostname:
        raise ValueError(f"{cluster['server']!r} is not the address of a server")
    tls = _tls(cluster, user, directory) if server.scheme == "https" else None
    port = server.port or (443 if tls else 80)
    return Access(server.hostname, port, tls, _token(user, directory), server.path.rstrip("/"))


def _named(entries: Any, name: str) -> Any:
    for entry in entries:
        if entry["name"] == name:
            return entry
    raise ValueError(f"it has no {name!r}")


def _token(user: Any, directory: Path) -> Any:
    if "tokenFile" in user:
        return lambda: (directory / user["tokenFile"]).read_text().strip()
    return lambda: user.get("token")


def _tls(cluster: Any, user: Any, directory: Path) -> ssl.SSLContext:
    authority = _content(cluster, "certificate-authority", directory)
    tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    certificate, key = _content(user, "client-certificate", directory), _content(user, "client-key", directory)
    if certificate and key:
        _load(tls, certificate + b"\n" + key)
    return tls


def _load(tls: ssl.SSLContext, chain: bytes) -> None:
    """The ssl module reads certificates from files only."""
    descriptor, name = tempfile.mkstemp()
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(chain)
        tls.load_cert_chain(name)
    finally:
        os.unlink(name)


def _content(entry: Any, name: str, directory: Path) -> bytes | None:
    if f"{name}-data" in entry:
        return base64.b64decode(entry[f"{name}-data"], validate=True)
    return (directory / entry[name]).read_bytes() if name in entry else None
