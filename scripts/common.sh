# What all scripts of recipes share; the comment at the head of each is its usage.
# shellcheck shell=sh
unset CDPATH
root=$(cd -- "$(dirname -- "$0")/../.." && pwd)
python=${PYTHON:-${VENV:-$root/.venv}/bin/python}
python=$(command -v "$python") || python=$(command -v python3)
# No module is taken from the folder that this was called in, which may hold a signal.py.
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1

usage() { sed -n '2,/^[^#]/s/^# //p' "$0"; }
case ${1-} in -h | --help) usage && exit ;; esac

refuse() {
    echo "$(basename "$0"): $1" >&2
    usage >&2
    exit 2
}

# labkit COMMAND RECIPE [OPTION ...]: in this process, so that a signal reaches the program.
labkit() { exec "$python" -m labkit.recipes "$@"; }
