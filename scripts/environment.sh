#!/bin/sh
# Make the virtual environment ready; installs once for each content of pyproject.toml and constraints.txt.
#   environment.sh base     what the labs need
#   environment.sh test     that and the test extra (PyTorch is most of it)
#   environment.sh python   only print which Python would be used
# From the environment: VENV (default .venv) and PYTHON (default: the first fitting one below).
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
marker="$venv/.incomplete"

# Print what the interpreter $1 is; succeed if the labs can run on it.
probe() {
    path=$(command -v "$1") || { echo "not found" && return 1; }
    version=$("$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) ||
        { echo "$path does not start" && return 1; }
    echo "$path is Python $version"
    case $version in 3.11.* | 3.12.*) ;; *) return 1 ;; esac
    "$1" -c 'import ensurepip, venv' 2>/dev/null ||
        { echo "    but has no venv; on Debian and Ubuntu: apt install python3-venv" && return 1; }
}

find_python() {
    seen=
    if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else set -- python3 python3.12 python3.11; fi
    for name in "$@"; do
        if found=$(probe "$name"); then
            echo "$name"
            return
        fi
        seen="$seen
  $name: $found"
    done
    echo "labkit needs Python 3.11 or 3.12 with venv; looked at:$seen" >&2
    echo "Install one of them, or name it: make run PYTHON=/path/to/python3.12" >&2
    return 2
}

version_of() { "$1" -c 'import sys; print(sys.version_info[:3])' 2>/dev/null || echo none; }

# Succeed if the environment there is can be kept: whole, startable, and of the Python asked for.
keepable() {
    [ ! -e "$marker" ] && probe "$venv/bin/python" >/dev/null || return 1
    [ -z "${PYTHON:-}" ] || [ "$(version_of "$PYTHON")" = "$(version_of "$venv/bin/python")" ]
}

new_venv() {
    python=$(find_python)
    if [ -d "$venv" ] && [ -n "$(ls -A "$venv")" ] && [ ! -e "$venv/pyvenv.cfg" ] && [ ! -e "$marker" ]; then
        echo "$venv exists and is not a virtual environment: move it away, or name another: VENV=" >&2
        return 2
    fi
    rm -rf "$venv"
    mkdir -p "$venv"
    echo $$ >"$marker"
    "$python" -m venv "$venv"
}

packages() { ls "$venv"/lib/python*/site-packages | cksum; }

install() {
    before=$(packages)
    echo $$ >"$marker"
    status=0
    "$venv/bin/python" -m pip install --no-input --disable-pip-version-check --no-compile \
        -c constraints.txt -e "$1" || status=$?
    if [ $status -ne 0 ]; then
        # pip fetches everything before it changes anything: without a network, what there was stays.
        [ "$(packages)" != "$before" ] || rm -f "$marker"
        echo "The installation failed; the reason is above. The same command tries again." >&2
        return $status
    fi
}

case ${1:-} in
python) find_python && exit ;;
base) project=. stamps=base ;;
test) project='.[test]' stamps='base test' ;;
*) echo "usage: environment.sh base|test|python; came: ${1:-nothing}" >&2 && exit 2 ;;
esac

# The path belongs to the key: an environment that was moved must be installed again.
key=$( (pwd && cat pyproject.toml constraints.txt) | cksum | tr ' ' -)
[ -z "${PYTHON:-}" ] || find_python >/dev/null
if [ -e "$venv/.installed-$1-$key" ] && keepable; then
    exit 0
fi
if other=$(cat "$marker" 2>/dev/null) && kill -0 "$other" 2>/dev/null; then
    echo "Process $other is installing into $venv; wait for it. If it is something else: rm -r $venv" >&2
    exit 2
fi
keepable || new_venv
echo "Installing into $venv: 3.1 GB on disk, about a minute after the download; the tests take more."
install "$project"
# 13 000 files, which pip would compile on one core, in 60 s. Some are templates, not Python.
PYTHONWARNINGS=ignore "$venv/bin/python" -m compileall -q -j 0 "$venv"/lib/python*/site-packages >/dev/null || true
rm -f "$venv"/.installed-*
for name in $stamps; do : >"$venv/.installed-$name-$key"; done
rm -f "$marker"
