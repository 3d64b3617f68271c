#!/bin/sh
# Runs the unit tests on every other Python that can be had: sh tools/test_pythons.sh [ARGUMENTS OF PYTEST]
#
# These are one Python of each version from 3.10 on, from PATH and pyenv, and that of Debian 13 in a chroot. What cannot be
# had is skipped with a reason. build/pythons and build/debian-13 are kept for the next time.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- -n "$(nproc)" tests/unit
debian=build/debian-13
results=
status=0

note() {
	results="$results$1
"
}

version() {
	"$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

outcome() { # NAME COMMAND...
	name=$1
	shift
	echo "--- $name"
	if "$@"; then
		note "$name: passed"
	else
		note "$name: FAILED"
		status=1
	fi
}

on_python() { # PYTHON VERSION ARGUMENTS...
	venv=build/pythons/$2
	[ -x "$venv/bin/pytest" ] || { "$1" -m venv --clear "$venv" && "$venv/bin/pip" install -q -e '.[test,kube,metrics]'; } || return
	shift 2
	PATH="$PWD/$venv/bin:$PATH" "$venv/bin/python" -m pytest "$@"
}

on_debian() { # ARGUMENTS...
	if [ ! -e "$debian/complete" ]; then
		rm -rf "$debian"
		debootstrap --variant=minbase --include=python3,python3-venv,gcc,libc6-dev,cmake,make,git,ca-certificates \
			trixie "$debian" >build/debootstrap.log || return
		touch "$debian/complete"
	fi
	mkdir -p "$debian/nvshare"
	find "$debian/nvshare" -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +
	git ls-files -co --exclude-standard -z | tar -c --null -T - | tar -x -C "$debian/nvshare"
	cp -L /etc/resolv.conf "$debian/etc/resolv.conf"
	cp --remove-destination -L /etc/ssl/certs/ca-certificates.crt "$debian/etc/ssl/certs/"
	# A mount namespace of its own: whatever happens, nothing stays mounted.
	unshare --mount sh -c '
		mount --make-rprivate / && mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" || exit
		root=$1
		shift
		exec chroot "$root" env -i HOME=/root PATH=/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 sh -ec "
			cd /nvshare
			make native
			[ -x .venv/bin/pytest ] || { python3 -m venv .venv && .venv/bin/pip install -q -e \".[test,kube,metrics]\"; }
			.venv/bin/python -m pytest \"\$@\"" sh "$@"' sh "$debian" "$@"
}

seen=" $(version .venv/bin/python) "
for python in $(command -v python3.10 python3.11 python3.12 python3.13 python3.14 python3 || true) \
	"${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python3; do
	found=$(version "$python") || continue
	case $found in 3.[6-9]) continue ;; esac
	case $seen in *" $found "*) continue ;; esac
	seen="$seen$found "
	outcome "Python $found ($python)" on_python "$python" "$found" "$@"
done

if [ "$(id -u)" != 0 ]; then
	note "Debian 13: skipped, only root can make a chroot"
elif ! command -v debootstrap >/dev/null; then
	note "Debian 13: skipped, there is no debootstrap (apt-get install debootstrap)"
else
	outcome "Debian 13" on_debian "$@"
fi

printf '\nBeside Python %s:\n%s' "$(version .venv/bin/python)" "$results"
exit $status
