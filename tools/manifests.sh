#!/bin/sh
# Renders the plain manifests from the chart: sh tools/manifests.sh DIRECTORY [OPTIONS OF HELM]
# PARTS names the templates. Helm is $HELM, one on the PATH, or the one that `make test-kube` has built; without any, exit code 77.
set -eu
cd "$(dirname "$0")/.."
target=$1
shift

find_helm() {
	command -v "${HELM:-helm}" && return
	for built in "${XDG_CACHE_HOME:-$HOME/.cache}"/nvshare/kube/*/helm; do
		[ -x "$built" ] && echo "$built" && return
	done
	return 1
}

if ! helm=$(find_helm | head -n 1) || [ -z "$helm" ]; then
	echo "SKIPPED: no helm here; install it, name it with HELM=..., or build it with make test-kube" >&2
	exit 77
fi
mkdir -p "$target"
for part in ${PARTS:-namespace rbac scheduler device-plugin}; do
	{
		echo "# Written by make manifests from deploy/chart/nvshare."
		"$helm" template nvshare deploy/chart/nvshare --namespace nvshare-system --set createNamespace=true --kube-version 1.32 \
			--show-only "templates/$part.yaml" "$@"
	} >"$target/$part.yaml.new"
	mv "$target/$part.yaml.new" "$target/$part.yaml"
done
