#!/bin/sh
# `install`: bring what demo and tests need from Debian or Ubuntu.  `verify`: name what is missing and how to get it.
# `demo`: the same as `verify` for root; anybody else is told, and the demo takes a fabric that works with what is there.
# Not wanted, not checked: wireguard-go (apt-get install wireguard-go wireguard-tools), with which `make bench` compares.
set -eu

# program=package
WANTED="ip=iproute2 ping=iputils-ping tcpdump=tcpdump git=git ssh-keygen=openssh-client iperf3=iperf3 python3=python3-venv make=make"

missing() {
    for pair in $WANTED; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%=*}" >/dev/null 2>&1 || printf '%s ' "${pair##*=}"
    done
    /usr/bin/python3 -c 'import ensurepip' 2>/dev/null || command -v python3 >/dev/null 2>&1 || printf 'python3-venv '
}

case "${1:-verify}" in
install)
    WANTED="$WANTED dropbear=dropbear-bin" # for tests only; without it those of policy over ssh:// are skipped
    packages=$(missing)
    if [ -z "$packages" ]; then
        echo "setup-system: nothing is missing"
        exit 0
    fi
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "setup-system: this is not Debian or Ubuntu; install these by your own means: $packages" >&2
        exit 1
    fi
    if [ "$(id -u)" != 0 ]; then
        echo "setup-system: root is needed to install: $packages" >&2
        echo "  next: sudo make setup-system" >&2
        exit 1
    fi
    echo "setup-system: installing $packages"
    apt-get update -q >/dev/null
    # shellcheck disable=SC2086  # a list of package names
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $packages >/dev/null
    ;;
verify)
    packages=$(missing)
    if [ -n "$packages" ]; then
        echo "missing from this machine: $packages" >&2
        echo "  next: make setup-system      (or: apt-get install $packages)" >&2
        exit 1
    fi
    ;;
demo)
    if ! .venv/bin/python -c 'import ztdpu.cli' 2>/dev/null; then
        who=$(id -un 2>/dev/null || id -u)
        echo "user $who cannot use this checkout: .venv/bin/python does not run, or may not read ztdpu" >&2
        echo "  next: make setup, sudo make demo, or a copy of the checkout (and an interpreter) that $who may read" >&2
        exit 1
    fi
    [ "$(id -u)" != 0 ] || exec sh "$0" verify
    packages=$(missing)
    [ -z "$packages" ] || echo "note: missing from this machine: $packages(make setup-system, as root)" >&2
    ;;
*)
    echo "usage: setup-system.sh install|verify|demo" >&2
    exit 2
    ;;
esac
