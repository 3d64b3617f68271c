#!/bin/sh
# Makes the Python messages of src/nvshare/kube/api from the definitions there: sh tools/stubs.sh PYTHON DIRECTORY
# With a compiler as old as the oldest protobuf that nvshare[kube] allows: what it writes runs on every later one.
set -eu
python=$1
venv=$2

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check 'grpcio-tools==1.60.*' 'setuptools<80'
"$venv/bin/python" -W ignore -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/nvshare/kube/api/*.proto
