"""The tools that make a cluster for tests, as far as they need none."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tools" / "kube"))

import image  # noqa: E402
import prerequisites  # noqa: E402
from settings import ADMIN, Settings  # noqa: E402


@pytest.fixture
def complete_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """As if: root, namespaces, all programs, everything built."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda program: None if program == "apt-get" else f"/usr/bin/{program}")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    prerequisites.binaries().mkdir(parents=True)
    (prerequisites.binaries() / "complete").touch()
    assert prerequisites.missing() is None
    return monkeypatch


def test_without_root_there_is_no_cluster(complete_machine: pytest.MonkeyPatch) -> None:
    complete_machine.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in (prerequisites.missing() or "")


def test_without_namespaces_there_is_no_cluster(complete_machine: pytest.MonkeyPatch) -> None:
    complete_machine.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1))
    assert "namespaces" in (prerequisites.missing() or "")


def test_programs_that_are_not_there_are_named_with_their_packages(complete_machine: pytest.MonkeyPatch) -> None:
    complete_machine.setattr(shutil, "which", lambda program: None if program in ("etcd", "apt-get") else program)
    assert prerequisites.missing() == "etcd not found; on Debian: apt-get install etcd-server"


def test_without_go_nothing_is_built(complete_machine: pytest.MonkeyPatch) -> None:
    (prerequisites.binaries() / "complete").unlink()
    complete_machine.setattr(shutil, "which", lambda program: None if program == "go" else program)
    assert "needs Go" in (prerequisites.missing() or "")


def test_tests_that_have_no_cluster_are_skipped_with_the_reason_and_never_passed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-p", "no:xdist", "tests/kube"],
        cwd=ROOT, env={**os.environ, "NVSHARE_KUBE": "missing: there is no Go"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "no cluster: there is no Go" in done.stdout
    summary = done.stdout.splitlines()[-1]
    assert "skipped" in summary
    assert "passed" not in summary


def test_layer_has_every_path_once_and_directories_before_what_is_in_them() -> None:
    layer = image.Layer()
    layer.file("usr/bin/first", b"one", 0o755)
    layer.file("usr/bin/first", b"again")
    layer.link("usr/bin/second", "first")
    with tarfile.open(fileobj=io.BytesIO(layer.finish())) as tar:
        assert tar.getnames() == ["usr", "usr/bin", "usr/bin/first", "usr/bin/second"]
        content = tar.extractfile("usr/bin/first")
        assert content is not None
        assert content.read() == b"one"


def test_archive_names_its_images_and_every_part_by_its_content(tmp_path: Path) -> None:
    layers = [image.Layer().finish(), image.Layer().finish()]
    target = tmp_path / "images.tar"
    both = [image.Image(("a:1", "b:1"), layers[0], ("sh",)), image.Image(("c:1",), layers[1], ("true",))]
    image.write_archive(both, target)
    with tarfile.open(target) as tar:
        content = {name: file.read() for name in tar.getnames() if (file := tar.extractfile(name)) is not None}

    def blob(reference: dict[str, Any]) -> bytes:
        data = content["blobs/" + reference["digest"].replace(":", "/")]
        assert reference["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert reference["size"] == len(data)
        return data

    named = {}
    for reference in json.loads(content["index.json"])["manifests"]:
        manifest = json.loads(blob(reference))
        config = json.loads(blob(manifest["config"]))
        assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
        for layer in manifest["layers"]:
            blob(layer)
        named[reference["annotations"]["io.containerd.image.name"]] = config["config"]["Cmd"]
    assert named == {"a:1": ["sh"], "b:1": ["sh"], "c:1": ["true"]}


def test_every_user_of_the_cluster_has_a_token_of_its_own(tmp_path: Path) -> None:
    settings = Settings(tmp_path, Path("/nowhere"), "test")
    settings.write("pause:local")
    tokens = [line.split(",")[0] for line in settings.path("tokens.csv").read_text().splitlines()]
    assert len(set(tokens)) == len(tokens)
    admin = json.loads(settings.path(f"{ADMIN}.kubeconfig").read_text())
    assert admin["users"][0]["user"]["token"] == tokens[0]
