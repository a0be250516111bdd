# What the scripts beside it share; each sets $usage.
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-${VENV:-$root/.venv}/bin/python}
python=$(command -v "$python") || python=$(command -v python3)
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH

refuse() {
    echo "$(basename "$0"): $1" >&2
    echo "$usage" >&2
    exit 2
}

data_folder() { [ -d "$1" ] || refuse "$1 is no folder"; }
