"""How the API server is reached, and what its answers may cost."""

from __future__ import annotations

import json
import subprocess

import pytest
from click.testing import CliRunner

from nvshare import config
from nvshare.cli import pod_watch
from nvshare.kube.pods.api import Lines
from nvshare.kube.pods.credentials import NoAccess, from_kubeconfig, in_cluster
from nvshare.kube.pods.watch import Backoff


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate and its key."""
    directory = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", "key.pem", "-out", "ca.crt", "-subj", "/CN=test", "-days", "2"),
        ],
        cwd=directory,
        check=True,
        capture_output=True,
    )
    return directory


def kubeconfig(path, user, cluster=None):
    path.write_text(
        json.dumps(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": cluster or {"server": "http://127.0.0.1:8080/base/"}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return path


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "which node?"),
        (["--node", "n"], "run this in a pod, or use --kubeconfig"),
        (["--node", "n", "--kubeconfig", "/nonexistent/config"], "cannot be used as a kubeconfig"),
    ],
)
def test_command_that_cannot_begin_is_one_line(options, says, monkeypatch):
    for name in ("NODE_NAME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(pod_watch.main, options)
    assert result.exit_code == 2
    assert says in result.output
    assert len(result.output.splitlines()) == 1


def test_token_of_the_pod_is_read_again_when_it_was_rotated(certificate, tmp_path):
    (tmp_path / "ca.crt").write_text((certificate / "ca.crt").read_text())
    (tmp_path / "token").write_text("first\n")
    access = in_cluster("10.0.0.1", 443, tmp_path)
    assert access.token() == "first"
    (tmp_path / "token").write_text("second\n")
    assert access.token() == "second"


def test_pod_without_a_service_account_is_told_so(tmp_path):
    with pytest.raises(NoAccess, match="is the service account mounted"):
        in_cluster("10.0.0.1", 443, tmp_path)


def test_kubeconfig_with_a_token(tmp_path):
    access = from_kubeconfig(kubeconfig(tmp_path / "config", {"token": "secret"}))
    assert (access.host, access.port, access.tls, access.prefix) == ("127.0.0.1", 8080, None, "/base")
    assert access.token() == "secret"


def test_kubeconfig_with_certificates_beside_it(certificate, tmp_path):
    for name in ("ca.crt", "key.pem"):
        (tmp_path / name).write_text((certificate / name).read_text())
    user = {"client-certificate": "ca.crt", "client-key": "key.pem"}
    path = kubeconfig(tmp_path / "config", user, {"server": "https://[::1]:6443", "certificate-authority": "ca.crt"})
    access = from_kubeconfig(path)
    assert (access.host, access.port, access.tls is not None) == ("::1", 6443, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "contexts"),
        ('{"contexts": [], "current-context": "x"}', "no 'x'"),
        ("[1]", "kubeconfig"),
    ],
)
def test_file_that_is_no_kubeconfig_is_named(tmp_path, text, says):
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(NoAccess, match=says):
        from_kubeconfig(path)


def test_user_that_a_program_makes_is_refused_with_what_to_use(tmp_path):
    with pytest.raises(NoAccess, match="certificate or a token"):
        from_kubeconfig(kubeconfig(tmp_path / "config", {"exec": {"command": "x"}}))


def test_place_in_a_cluster_is_read_from_the_environment():
    environ = {"NODE_NAME": "n", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert config.cluster_place(environ) == config.ClusterPlace("n", ("10.0.0.1", 6443), None)
    assert config.cluster_place({}) == config.ClusterPlace("", None, None)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_lines_come_out_whole_however_they_came_in(size):
    data = b'{"a":1}\n\n{"b":2}\n{"c":'
    lines = Lines(100)
    found = [line for start in range(0, len(data), size) for line in lines.feed(data[start : start + size])]
    assert found == [b'{"a":1}', b'{"b":2}']


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_line_beyond_the_bound_is_passed_over_and_the_next_is_read(size):
    data = b"x" * 50 + b"\n" + b"good\n" + b"y" * 21 + b"\n" + b"z" * 20 + b"\n"
    lines = Lines(20)
    found = [line for start in range(0, len(data), size) for line in lines.feed(data[start : start + size])]
    assert found == [b"good", b"z" * 20]


def test_pauses_grow_to_a_bound_and_begin_anew():
    backoff = Backoff(lambda: 1.0)
    pauses = [backoff.pause() for _ in range(10)]
    assert pauses[0] == Backoff.FIRST
    assert pauses == sorted(pauses)
    assert pauses[-1] == Backoff.LONGEST
    backoff.reset()
    assert backoff.pause() == Backoff.FIRST
    assert Backoff(lambda: 0.0).pause() == Backoff.FIRST / 2
