# What the scripts beside it share; each sets $usage.
unset CDPATH
root=$(cd -- "$(dirname -- "$0")/../.." && pwd)
python=${PYTHON:-${VENV:-$root/.venv}/bin/python}
python=$(command -v "$python") || python=$(command -v python3)
# The folder that this was called in may hold anything, a signal.py or torch.py too: no module is
# taken from there. An empty part of PYTHONPATH would be that folder.
PYTHONPATH=$(printf '%s' "$root:${PYTHONPATH-}" | sed 's/::*/:/g; s/:$//')
PYTHONSAFEPATH=1
export PYTHONPATH PYTHONSAFEPATH

refuse() {
    echo "$(basename "$0"): $1" >&2
    echo "$usage" >&2
    exit 2
}

data_folder() { [ -d "$1" ] || refuse "$1 is no folder"; }

# What run starts carries this in its environment, and so do its children: msrun makes each rank the
# leader of a session, which no signal to a group reaches.
mark=$(cat /proc/sys/kernel/random/uuid 2>/dev/null || echo "$$-$(date +%s)")

# run PROGRAM [ARGUMENT ...]: return its exit code. However this script ends (SIGKILL aside), by HUP,
# INT and TERM too, nothing stays that the program has started.
run() {
    child=
    trap end_all EXIT
    for signal in HUP INT QUIT TERM; do
        trap "end_by $signal" "$signal"
    done
    LABKIT_SCRIPT="${LABKIT_SCRIPT:+$LABKIT_SCRIPT:}$mark" "$@" &
    child=$!
    code=0
    wait "$child" || code=$?
    child=
    end_all
    return $code
}

end_by() {
    trap '' HUP INT QUIT TERM
    ask_all
    end_all
    trap - EXIT "$1"
    kill -s "$1" $$
}

# Let Python programs come to their finally: locks let go, files closed. TERM, whatever was sent: a
# shell starts a program in the background with INT and QUIT ignored. Each gets it a single time, as
# a second would end its finally. 10 s, but none for what ignores TERM (bit 15 of SigIgn).
ask_all() {
    first=$child
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true
    for process in $(marked); do
        [ "$process" = "$first" ] || kill -TERM "$process" 2>/dev/null || true
    done
    looks=0
    while [ $looks -lt 100 ]; do
        waits=
        for process in $(marked); do
            grep -qs '^SigIgn:.*[4-7c-f]...$' "/proc/$process/status" || waits=yes
        done
        [ -n "$waits" ] || break
        sleep 0.1
        looks=$((looks + 1))
    done
}

# The processes of this machine that run has started, a line each.
marked() {
    grep -lsF -e "$mark" /proc/[0-9]*/environ | sed 's|^/proc/||; s|/environ$||'
}

# Until two looks find nothing: in the middle of an exec a process shows no environment.
end_all() {
    [ -z "$child" ] || kill -KILL "$child" 2>/dev/null || true
    empty=0
    for look in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        left=$(marked)
        empty=$((empty + 1))
        for process in $left; do
            empty=0
            kill -KILL "$process" 2>/dev/null || true
        done
        [ $empty -lt 2 ] || break
        sleep 0.05
    done
}

# run_ranks DEVICES LOGS MODULE [ARGUMENT ...]: train on several devices of this machine.
run_ranks() {
    devices=$1
    logs=$2
    module=$3
    shift 3
    mkdir -p "$logs"
    # msrun starts "python": that of the environment must come first.
    PATH="$(dirname -- "$python"):$PATH"
    export PATH
    status=0
    # In a session of its own: msrun kills its ranks at once where ^C reaches it.
    apart=setsid
    command -v setsid >/dev/null || apart=
    run $apart msrun --worker_num "$devices" --local_worker_num "$devices" --join True --log_dir "$logs" \
        --master_port "${MASTER_PORT:-8118}" \
        python -m "$module" "$@" >"$logs/msrun.log" 2>&1 || status=$?
    tail -n 20 "$logs/worker_0.log" 2>/dev/null || tail -n 20 "$logs/msrun.log"
    [ $status -eq 0 ] || echo "$(basename "$0"): failed; the logs are in $logs" >&2
    exit $status
}
