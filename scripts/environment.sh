#!/bin/sh
# Make the virtual environment ready; installs once for each content of pyproject.toml and constraints.txt.
#   environment.sh base     what the labs need
#   environment.sh test     that and the test extra (PyTorch is most of it)
#   environment.sh python   only print which Python would be used
#   environment.sh remove   remove the environment, if this script has made it for this checkout
# From the environment: VENV (default .venv) and PYTHON (default: the first fitting one below).
set -eu
unset CDPATH
cd -- "$(dirname -- "$0")/.."
project=$(pwd -P)
venv=${VENV:-.venv}
case $venv in -*) venv=./$venv ;; esac
while :; do case $venv in ?*/) venv=${venv%/} ;; *) break ;; esac; done
marker="$venv/.incomplete"
# Written before anything else into an environment that this script makes: for whom, and where.
record="$venv/.made-by-environment.sh"

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
        if seen_as=$(probe "$name"); then
            echo "$name"
            return
        fi
        seen="$seen
  $name: $seen_as"
    done
    echo "labkit needs Python 3.11 or 3.12 with venv; looked at:$seen" >&2
    echo "Install one of them, or name it: make run PYTHON=/path/to/python3.12" >&2
    return 2
}

version_of() { "$1" -c 'import sys; print(sys.version_info[:3])' 2>/dev/null || echo none; }

# The environment's folder without links; fails where there is none.
real_path() { (cd -- "$venv" 2>/dev/null && pwd -P); }

# Succeed if this script has made the environment, for this checkout or inside it: a checkout may
# be moved together with its environment. An environment that somebody else made is never removed.
own() {
    real=$(real_path) && made=$(cat "$record" 2>/dev/null) || return 1
    case $real in "$project"/*) return ;; esac
    [ "$made" = "$project
$real" ]
}

# Write the record into an environment that this script made here before it kept one: .venv, a
# folder of its own in the checkout, with the empty stamps of those days. Stamps have a word in them
# now, so that an environment which the user made and this script installed into is never taken.
adopt() {
    [ ! -e "$record" ] && [ ! -L "$record" ] || return 0
    [ ! -L "$venv" ] && [ "$(real_path)" = "$project/.venv" ] || return 0
    [ -f "$venv/pyvenv.cfg" ] && [ ! -L "$venv/pyvenv.cfg" ] || return 0
    for stamp in "$venv"/.installed-base-* "$venv"/.installed-test-*; do
        case ${stamp##*/.installed-????-} in
        *[!0-9-]* | -* | *- | *-*-*) continue ;; # a key is two numbers, of cksum
        *-*) ;;
        *) continue ;;
        esac
        [ -f "$stamp" ] && [ ! -L "$stamp" ] && [ ! -s "$stamp" ] || continue
        { printf '%s\n%s\n' "$project" "$project/.venv" >"$record"; } 2>/dev/null || true
        return 0
    done
}

# Succeed if the Python of the environment starts, and is the one asked for.
fits() {
    probe "$venv/bin/python" >/dev/null || return 1
    [ -z "${PYTHON:-}" ] || [ "$(version_of "$PYTHON")" = "$(version_of "$venv/bin/python")" ]
}

# Succeed if everything asked for is installed: $1 of this pyproject.toml, at this place.
complete() { [ -e "$venv/.installed-$1-$key" ] && [ ! -e "$marker" ] && fits; }

# Succeed for the checkout and the folders above it, and for the home folder.
holds_more() {
    place=$(real_path) && home=$(cd -- "${HOME:-/}" 2>/dev/null && pwd -P) || home=/
    case "$project/" in "${place%/}"/*) return ;; esac
    [ "$place" = "$home" ]
}

# Refuse a folder that is not an environment, or an environment of others that cannot be used as it is.
check_place() {
    [ -e "$venv" ] || [ -L "$venv" ] || return 0
    if ! real_path >/dev/null; then
        echo "$venv exists and is not a folder: move it away, or name another: VENV=" >&2
        return 2
    fi
    if holds_more; then
        echo "$venv holds more than a virtual environment: name another: VENV=" >&2
        return 2
    fi
    # In this order: what another process has begun is seen as its own, or as its work.
    [ -n "$(ls -A "$venv/")" ] || return 0
    ! at_work || busy
    ! own || return 0
    if [ ! -e "$venv/pyvenv.cfg" ] && [ ! -e "$marker" ]; then
        echo "$venv exists and is not a virtual environment: move it away, or name another: VENV=" >&2
        return 2
    fi
    if [ -e "$marker" ] || ! fits; then
        echo "$venv cannot be used as it is, and was not made by this script for this checkout:" \
            "move it away, or name another: VENV=" >&2
        return 2
    fi
}

# Succeed if a process that lives is installing, or about to; $other says which.
at_work() {
    other=
    [ ! -d "$venv/.claim" ] || return 0
    other=$(cat "$marker" 2>/dev/null) && lives "$other"
}

lives() { [ -n "$1" ] && { kill -0 "$1" 2>/dev/null || [ -d "/proc/$1" ]; }; }

busy() {
    echo "Process ${other:-unknown} is installing into $venv; wait for it." \
        "If it is something else: rm -rf '$venv/.claim'; : >'$marker'" >&2
    exit 2
}

# Take the environment for this process alone, for as long as it lives. Sets $whole to "yes" where
# nothing was left half installed. mkdir is atomic; .claim is there for one look at the marker only.
claim() {
    other=
    mkdir -p "$venv"
    if ! mkdir "$venv/.claim" 2>/dev/null; then
        [ ! -w "$venv" ] || busy
        echo "$venv cannot be written to: name another: VENV=" >&2
        exit 2
    fi
    whole=yes
    [ ! -e "$marker" ] || whole=
    status=0
    # pip holds this lock too: it continues if only this shell was killed.
    if command -v flock >/dev/null; then
        exec 9>"$venv/.lock"
        flock -n 9 || status=$?
    fi
    # Any other status than 1: a file system without locks.
    if [ $status -eq 1 ] || { other=$(cat "$marker" 2>/dev/null) && lives "$other"; }; then
        rm -rf "$venv/.claim"
        busy
    fi
    echo $$ >"$marker"
    rm -rf "$venv/.claim"
}

# Remove what an environment consists of, and nothing that was put beside it.
clear_environment() {
    for part in bin include lib lib64 share etc pyvenv.cfg; do rm -rf "$venv/$part"; done
    rm -f "$venv"/.installed-*
}

new_venv() {
    python=$(find_python)
    printf '%s\n%s\n' "$project" "$(real_path)" >"$record"
    clear_environment
    "$python" -m venv "$venv"
}

remove() {
    [ -e "$venv" ] || return 0
    adopt
    if ! own || holds_more; then
        echo "$venv was not made by this script for this checkout, and stays." >&2
        return 2
    fi
    ! at_work || busy
    claim
    clear_environment
    rm -f "$venv/.lock" "$record" "$marker"
    # A link and the folder that it points to are the user's.
    [ -L "$venv" ] || rmdir "$venv" 2>/dev/null || echo "What else is in $venv stays."
}

packages() { ls "$venv"/lib/python*/site-packages | cksum; }

install() {
    before=$(packages)
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

# The distribution was called labkit up to 0.1.0. What is left of it claims the command `labkit`, and
# uninstalling it would take the command away; only its editable form is ours.
forget_old_name() {
    for site in "$venv"/lib/python*/site-packages; do
        [ -e "$site/__editable__.labkit-0.1.0.pth" ] || continue
        rm -rf "$site/labkit-0.1.0.dist-info" "$site/__editable__.labkit-0.1.0.pth" \
            "$site/__editable___labkit_0_1_0_finder.py"
    done
}

case ${1:-} in
python) find_python; exit ;;
base) project_spec='.[labs]' stamps=base ;;
test) project_spec='.[labs,test]' stamps='base test' ;;
remove) remove; exit ;;
*)
    echo "environment.sh: expected base, test, python or remove, got ${1:-nothing}" >&2
    exit 2
    ;;
esac

# The path belongs to the key: an environment that was moved must be installed again.
key=$( (pwd && cat pyproject.toml constraints.txt) | cksum | tr ' ' -)
[ -z "${PYTHON:-}" ] || find_python >/dev/null
adopt
if complete "$1"; then
    exit 0
fi
check_place
fits || find_python >/dev/null
claim
if [ -n "$whole" ] && [ -e "$venv/.installed-$1-$key" ] && fits; then
    rm -f "$marker" # another process has installed it meanwhile
    exit 0
fi
{ [ -n "$whole" ] && fits; } || new_venv
echo "Installing into $venv: 3.1 GB on disk, about a minute after the download; the tests take more."
install "$project_spec"
forget_old_name
# 13 000 files, which pip would compile on one core, in 60 s. Some are templates, not Python.
PYTHONWARNINGS=ignore "$venv/bin/python" -m compileall -q -j 0 "$venv"/lib/python*/site-packages >/dev/null || true
rm -f "$venv"/.installed-*
for name in $stamps; do echo installed >"$venv/.installed-$name-$key"; done
rm -f "$marker"
