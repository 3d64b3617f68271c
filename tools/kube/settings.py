"""What the programs of the cluster are told: files written into its directory, and their command lines."""

from __future__ import annotations

import json
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NODE = "node-1"
ADDRESS = "10.88.0.1"  # of the bridge that pods hang on; a kubelet takes no loopback address
POD_RANGE = "10.88.0.0/16"
SERVICE_RANGE = "10.96.0.0/24"
API_SERVICE = "10.96.0.1"  # an address of the bridge too, so that pods reach the API without a kube-proxy
API_PORT = 443
ASIDE_PORT = 6443  # of the second API server, when there is one
BRIDGE = "cni0"

ADMIN = "admin"
ASIDE = "kube-apiserver-aside"
_USERS = {
    ADMIN: (ADMIN, "system:masters"),
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
}


@dataclass(frozen=True)
class Settings:
    """Everything below one directory. Paths are the same inside and outside of the cluster's namespaces."""

    directory: Path
    binaries: Path
    cgroup: str  # of the whole cluster, as a name below each hierarchy

    def path(self, name: str) -> Path:
        return self.directory / "etc" / name

    @property
    def kubeconfig(self) -> Path:
        return self.path(f"{ADMIN}.kubeconfig")

    @property
    def aside_kubeconfig(self) -> Path:
        """The same user at the second API server."""
        return self.path("aside.kubeconfig")

    @property
    def containerd_socket(self) -> Path:
        return self.directory / "containerd.sock"

    @property
    def certificate(self) -> Path:
        """Made by the API server; holds the authority that signed it as well."""
        return self.directory / "certs" / "apiserver.crt"

    def write(self, pause_image: str) -> None:
        """All files but the key, and those that the API server makes."""
        self.path("cni").mkdir(parents=True)
        tokens = {user: secrets.token_hex(16) for user in _USERS}
        lines = [f'{tokens[user]},{name},{user},"{groups}"' for user, (name, groups) in _USERS.items()]
        self.path("tokens.csv").write_text("\n".join(lines) + "\n")
        for user, token in tokens.items():
            self.path(f"{user}.kubeconfig").write_text(self._kubeconfig(user, token, API_PORT))
        self.aside_kubeconfig.write_text(self._kubeconfig(ADMIN, tokens[ADMIN], ASIDE_PORT))
        self.path("kubelet.json").write_text(json.dumps(self._kubelet()))
        self.path("containerd.toml").write_text(self._containerd(pause_image))
        self.path("cni/10-bridge.conflist").write_text(json.dumps(_network()))

    def make_key(self) -> None:
        subprocess.run(["openssl", "genrsa", "-out", self._accounts, "2048"], check=True, capture_output=True)

    @property
    def _accounts(self) -> Path:
        """The key that signs the tokens of service accounts."""
        return self.path("accounts.key")

    def _kubelet(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "containerRuntimeEndpoint": f"unix://{self.containerd_socket}",
            "volumePluginDir": str(self.directory / "volume-plugins"),
            "registerWithTaints": [],
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "50Mi"},
            "nodeStatusUpdateFrequency": "2s",
            "syncFrequency": "10s",
            "makeIPTablesUtilChains": False,
            "registryPullQPS": 0,
            "eventRecordQPS": 0,
            "kubeAPIQPS": 200,
            "kubeAPIBurst": 400,
        }

    def _kubeconfig(self, user: str, token: str, port: int) -> str:
        cluster = {"server": f"https://{ADDRESS}:{port}", "certificate-authority": str(self.certificate)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": user}}],
            "current-context": "local",
        }
        return json.dumps(config)

    def _api_server(self, port: int) -> list[str]:
        return [
            str(self.binaries / "kube-apiserver"),
            "--etcd-servers=http://127.0.0.1:2379",
            f"--advertise-address={ADDRESS}",
            "--bind-address=0.0.0.0",
            f"--secure-port={port}",
            f"--cert-dir={self.certificate.parent}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            f"--token-auth-file={self.path('tokens.csv')}",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={self._accounts}",
            f"--service-account-key-file={self._accounts}",
            "--allow-privileged",
            "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def _containerd(self, pause_image: str) -> str:
        return f"""version = 2
root = "{self.directory}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "{self.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause_image}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{self.path("cni")}"
"""

    def commands(self) -> dict[str, list[str]]:
        """Programs by name, with what each is told."""
        run = {name: str(self.binaries / name) for name in _USERS}
        config = {user: f"--kubeconfig={self.path(f'{user}.kubeconfig')}" for user in _USERS}
        return {
            "etcd": [
                "etcd", f"--data-dir={self.directory}/etcd", "--log-level=warn",
                "--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
                "--listen-peer-urls=http://127.0.0.1:2380",
            ],
            "containerd": ["containerd", f"--config={self.path('containerd.toml')}"],
            "kube-apiserver": self._api_server(API_PORT),
            ASIDE: self._api_server(ASIDE_PORT),
            "kube-controller-manager": [
                run["kube-controller-manager"], config["kube-controller-manager"], "--leader-elect=false",
                f"--service-account-private-key-file={self._accounts}", f"--root-ca-file={self.certificate}",
                "--use-service-account-credentials", "--kube-api-qps=100", "--kube-api-burst=200",
            ],
            "kube-scheduler": [run["kube-scheduler"], config["kube-scheduler"], "--leader-elect=false"],
            "kubelet": [
                run["kubelet"], config["kubelet"], f"--config={self.path('kubelet.json')}",
                f"--hostname-override={NODE}", f"--node-ip={ADDRESS}", "--v=2",
            ],
        }  # fmt: skip


def _network() -> dict[str, Any]:
    addresses = {"type": "host-local", "ranges": [[{"subnet": POD_RANGE}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipMasq": False, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
