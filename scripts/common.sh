# What all scripts of recipes share; the comment at the head of each is its usage.
# shellcheck shell=sh
unset CDPATH
root=$(cd -- "$(dirname -- "$0")/../.." && pwd)
python=${PYTHON:-${VENV:-$root/.venv}/bin/python}
python=$(command -v "$python") || python=$(command -v python3)
# No module is taken from the folder that this was called in, which may hold a signal.py.
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1

refuse() {
    echo "$(basename "$0"): $1" >&2
    sed -n '2,/^[^#]/s/^# //p' "$0" >&2
    exit 2
}

# labkit COMMAND RECIPE [OPTION ...]: in this process, so that a signal reaches the program.
labkit() { exec "$python" -m labkit.recipes "$@"; }

# on_ranks COUNT COMMAND RECIPE [OPTION ...]: the same on several devices of this machine.
on_ranks() {
    count=$1
    shift
    [ "$count" = 1 ] || set -- "$@" --ranks "$count"
    [ -z "${LOG_DIR-}" ] || set -- "$@" --log_dir "$LOG_DIR"
    [ -z "${MASTER_PORT-}" ] || set -- "$@" --master "127.0.0.1:$MASTER_PORT"
    labkit "$@"
}

# on_two_servers NUMBER RECIPE DATA [OPTION ...]: on the devices of two servers, of which this is NUMBER.
on_two_servers() {
    number=$1 recipe=$2
    shift 2
    [ $# -ge 1 ] || refuse "expected a folder"
    [ -z "${LOG_DIR-}" ] || set -- "$@" --log_dir "$LOG_DIR"
    if [ -n "${RANK_TABLE_FILE-}" ]; then
        set -- "$@" --rank_table "$RANK_TABLE_FILE"
    else
        [ -n "${MASTER-}" ] || refuse "expected MASTER=HOST:PORT or RANK_TABLE_FILE"
        set -- "$@" --ranks "${DEVICE_NUM:-8}" --nodes 2 --master "$MASTER"
    fi
    labkit train "$recipe" --node_rank "$number" --data_path "$@"
}
