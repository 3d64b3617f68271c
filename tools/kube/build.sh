#!/bin/sh
# Builds the programs of a cluster into the folder that it prints: tools/kube/build.sh
# They are kept outside the tree, by version, and built only once (some minutes on two cores).
set -eu
cd "$(dirname "$0")"
helm=v3.17.4
kubernetes=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
bin="${XDG_CACHE_HOME:-$HOME/.cache}/nvshare/kube/$kubernetes"
if [ ! -e "$bin/complete" ]; then
	mkdir -p "$bin"
	export CGO_ENABLED=0
	version="-X k8s.io/component-base/version.gitVersion=$kubernetes -X k8s.io/client-go/pkg/version.gitVersion=$kubernetes"
	echo "building Kubernetes $kubernetes and Helm $helm into $bin" >&2
	nice go build -mod=readonly -trimpath -ldflags "-s -w $version" -o "$bin/" tool >&2
	GOBIN="$bin" nice go install -trimpath -ldflags "-s -w" "helm.sh/helm/v3/cmd/helm@$helm" >&2
	touch "$bin/complete"
fi
echo "$bin"
