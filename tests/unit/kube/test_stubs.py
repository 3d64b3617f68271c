"""Our definitions of the kubelet's API against the published ones, where a Go module cache has them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from nvshare.kube import api

OURS = Path(api.__file__).parent
_CACHES = [Path(os.environ.get("GOMODCACHE", "")), Path(os.environ.get("GOPATH", "")) / "pkg" / "mod"]
_CACHES.append(Path.home() / "go" / "pkg" / "mod")

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_MESSAGE = re.compile(r"message (\w+)\s*\{([^}]*)\}")
_FIELD = re.compile(r"((?:repeated )?(?:map<[^>]*>|\w+)) (\w+) = (\d+)")
_METHOD = re.compile(r"rpc (\w+)\((\w+)\) returns \(((?:stream )?\w+)\)")


def messages(text: str) -> dict[str, set[tuple[str, ...]]]:
    return {name: set(_FIELD.findall(body)) for name, body in _MESSAGE.findall(_COMMENT.sub("", text))}


def published(folder: str) -> str:
    for cache in _CACHES:
        for found in sorted(cache.glob(f"k8s.io/kubelet@*/pkg/apis/{folder}/api.proto"), reverse=True):
            return found.read_text()
    pytest.skip("no Go module cache here has k8s.io/kubelet")


@pytest.mark.parametrize(
    ("ours", "folder"), [("deviceplugin.proto", "deviceplugin/v1beta1"), ("podresources.proto", "podresources/v1")]
)
def test_our_definitions_are_those_that_were_published(ours: str, folder: str) -> None:
    theirs, own = published(folder), (OURS / ours).read_text()
    fields = messages(theirs)
    for name, body in messages(own).items():
        assert body <= fields[name], name
    assert set(_METHOD.findall(_COMMENT.sub("", own))) <= set(_METHOD.findall(_COMMENT.sub("", theirs)))
    assert re.search(r"^package (\w+);", own, re.M)[1] == re.search(r"^package (\w+);", theirs, re.M)[1]  # type: ignore[index]


def test_stubs_were_made_from_the_definitions_beside_them() -> None:
    from nvshare.kube.api import deviceplugin_pb2, podresources_pb2

    for stub, name in ((deviceplugin_pb2, "deviceplugin"), (podresources_pb2, "podresources")):
        defined = messages((OURS / f"{name}.proto").read_text())
        made = {
            message.name: {(field.name, str(field.number)) for field in message.fields}
            for message in stub.DESCRIPTOR.message_types_by_name.values()
        }
        assert made == {message: {field[1:] for field in fields} for message, fields in defined.items()}
