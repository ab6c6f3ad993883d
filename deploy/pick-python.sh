#!/bin/sh
# Print the interpreter for the virtual environment: the first of Python 3.11 or newer that every uid can execute.
# A lab gives tenants and devices uid ranges of their own; an interpreter under somebody's 0700 home is closed to them.
set -eu

executable_by_all() {
    path=$(readlink -f "$1") || return 1
    [ "$(stat -c %A "$path" | cut -c10)" = x ] || return 1
    while [ "$path" != / ]; do
        path=$(dirname "$path")
        [ "$(stat -c %A "$path" | cut -c10)" != - ] || return 1
    done
}

fallback=
for candidate in ${PYTHON:-} /usr/bin/python3 /usr/local/bin/python3 $(command -v python3.13 python3.12 python3.11 python3 || true); do
    [ -x "$candidate" ] || continue
    "$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    if executable_by_all "$candidate"; then
        echo "$candidate"
        exit 0
    fi
    fallback=${fallback:-$candidate}
done
if [ -n "$fallback" ]; then
    echo "$fallback"
    exit 0
fi
echo "setup: no Python 3.11 or newer with the venv module was found." >&2
echo "  next: apt-get install python3 python3-venv   (or set PYTHON=/path/to/python3)" >&2
exit 1
