#!/bin/sh
# Makes the virtual environment that the Makefile works in: sh tools/bootstrap.sh PYTHON DIRECTORY
set -eu
python=$1
venv=$2

fail() {
	echo "nvshare: $*" >&2
	exit 1
}

command -v "$python" >/dev/null || fail "$python not found; install Python 3.10 or later, or name one: make PYTHON=..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
	fail "$("$python" --version) is too old; Python 3.10 or later is needed: make PYTHON=..."
command -v cc >/dev/null || command -v gcc >/dev/null || fail "no C compiler; on Debian or Ubuntu: apt-get install gcc libc6-dev"

# Debian and Ubuntu ship Python without ensurepip; their package adds it.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
	package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
	echo "nvshare: installing $package (needed once to make $venv)"
	if [ "$(id -u)" = 0 ]; then
		apt-get install -y -qq "$package" >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq "$package" >/dev/null; }
	else
		fail "Python has no venv module here; run: sudo apt-get install $package"
	fi
fi

echo "nvshare: setting up $venv (once; about a minute)"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dev,kube]'
