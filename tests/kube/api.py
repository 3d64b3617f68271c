"""The API server of the cluster that ``KUBECONFIG`` names, as plain requests."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

_SECONDS = 10.0


class Refused(Exception):
    """The API server said no."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Api:
    """Objects are what JSON makes of them."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self._server = cluster["server"]
        self._token = config["users"][0]["user"]["token"]
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])

    def get(self, path: str) -> dict[str, Any]:
        return self._ask("GET", path)

    def find(self, path: str) -> dict[str, Any] | None:
        """None when there is no such object."""
        try:
            return self.get(path)
        except Refused as refused:
            if refused.code != 404:
                raise
            return None

    def text(self, path: str) -> str:
        """What is no object: the log of a container."""
        with self._open("GET", path) as answer:
            return str(answer.read().decode(errors="replace"))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._ask("POST", path, body)

    def delete(self, path: str, body: dict[str, Any] | None = None) -> None:
        try:
            self._ask("DELETE", path, body)
        except Refused as refused:
            if refused.code != 404:
                raise

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        with self._open(method, path, body) as answer:
            return dict(json.load(answer))

    def _open(self, method: str, path: str, body: dict[str, Any] | None = None) -> HTTPResponse:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._server + path, data, headers, method=method)
        try:
            answer: HTTPResponse = urllib.request.urlopen(request, timeout=_SECONDS, context=self._tls)
            return answer
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.code, error.read().decode(errors="replace")) from None
