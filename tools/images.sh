#!/bin/sh
# Builds the container images from this architecture's wheel in dist/: sh tools/images.sh PREFIX TAG
# The builder is $BUILDER, or whichever of docker, podman and buildah works here.
set -eu
cd "$(dirname "$0")/.."
prefix=$1
tag=$2

works() {
	command -v "$1" >/dev/null 2>&1 && "$1" info >/dev/null 2>&1
}

for builder in ${BUILDER:-docker podman buildah}; do
	works "$builder" && break
	builder=
done
if [ -z "$builder" ]; then
	echo "nvshare: no ${BUILDER:-docker, podman or buildah} that works here: install one, start its daemon, or name it with BUILDER=..." >&2
	exit 1
fi
wheel="dist/nvshare-*_$(uname -m).whl"
[ "$(ls $wheel 2>/dev/null | wc -l)" = 1 ] || {
	echo "nvshare: dist/ has to hold one wheel for $(uname -m): make wheels" >&2
	exit 1
}
# What is sent to the builder is the wheel alone.
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
mkdir "$context/dist"
cp $wheel "$context/dist/"
for image in scheduler device-plugin workloads; do
	echo "nvshare: $prefix/nvshare-$image:$tag"
	"$builder" build --tag "$prefix/nvshare-$image:$tag" ${PYTHON_IMAGE:+--build-arg PYTHON_IMAGE="$PYTHON_IMAGE"} \
		--file "deploy/images/$image.Dockerfile" "$context"
done
