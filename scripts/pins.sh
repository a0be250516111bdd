#!/bin/sh
# The exact versions, with uv, from the package index that uv is set to.
#   pins.sh renew   constraints.txt and environment.yml: the newest versions that pyproject.toml allows
#   pins.sh lock    uv.lock from constraints.txt, for `uv sync --extra labs`
set -eu
cd -P -- "$(dirname -- "$0")/.."
command -v uv >/dev/null || { echo "uv is not installed: pip install uv" >&2 && exit 2; }
case $1 in
lock) sed -n 's/^[a-z].*/-P\n&/p' constraints.txt | xargs -d '\n' uv lock; exit ;;
renew) ;;
*) echo "expected renew or lock, got $1" >&2 && exit 2 ;;
esac

new=$(mktemp -d) && trap 'rm -rf "$new"' EXIT
compile() {
    uv pip compile --quiet --no-header --no-annotate --python-platform linux --extra labs --extra docs --extra test \
        pyproject.toml "$@"
}
# One version for every Python: what the lowest takes, and what a later one needs besides.
compile --python-version 3.11 >"$new/3.11"
compile --python-version 3.12 -c "$new/3.11" >"$new/3.12"
# What slow tests install without its requirements stays as it is: nothing says which versions fit.
names=$(sed -n 's/^networks="\(.*\)"/\1/p' scripts/environment.sh | tr ' ' '|')
grep -E "^($names)==" constraints.txt >"$new/networks"
{
    grep '^#' constraints.txt
    cat "$new/3.11" "$new/3.12" "$new/networks" | grep -Ev '^(nvidia-|cuda-|triton)' |
        LC_ALL=C sort -u -t = -k 1,1
} >"$new/constraints.txt"
awk 'NR == FNR { split($0, pin, "=="); version[pin[1]] = pin[2]; next }
    split($2, pin, "==") == 2 && pin[1] in version { sub(/==.*/, "==" version[pin[1]]) }
    { print }' "$new/constraints.txt" environment.yml >"$new/environment.yml"
cp "$new/constraints.txt" "$new/environment.yml" .
