# What all scripts of recipes share. Each sets $usage, or calls what does.
# shellcheck shell=sh disable=SC2034,SC2154
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

data_folder() { [ -d "$1" ] || refuse "$1 is not a folder"; }

# What run starts carries this in its environment, and so do its children: msrun makes each rank the
# leader of a session, which no signal to a group reaches.
mark=$(cat /proc/sys/kernel/random/uuid 2>/dev/null || echo "$$-$(date +%s)")

# run PROGRAM [ARGUMENT ...]: return its exit code. However this script ends (SIGKILL aside), by HUP,
# INT and TERM too, nothing stays that the program has started.
run() {
    child=
    trap end_all EXIT
    for signal in HUP INT QUIT TERM; do
        # shellcheck disable=SC2064  # the signal of now
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

# labkit COMMAND RECIPE [OPTION ...]
labkit() { run "$python" -m labkit.recipes "$@"; }

# on_ranks COUNT COMMAND RECIPE [OPTION ...]: the same on several devices of this machine.
on_ranks() {
    case $1 in '' | *[!0-9]* | 0*) refuse "DEVICES is '$1', expected a number of at least 1" ;; esac
    count=$1
    shift
    [ "$count" -eq 1 ] || set -- "$@" --ranks "$count"
    [ "$count" -eq 1 ] || [ -z "${LOG_DIR-}" ] || set -- "$@" --log_dir "$LOG_DIR"
    [ "$count" -eq 1 ] || [ -z "${MASTER_PORT-}" ] || set -- "$@" --master "127.0.0.1:$MASTER_PORT"
    labkit "$@"
}

# two_servers SERVER_ID DATA [OPTION ...]: Adasum on the devices of one of them. Its ranks are
# SERVER_ID * DEVICE_NUM and those that follow.
two_servers() {
    usage="usage: $(basename "$0") DATA [OPTION ...]
  DATA    folder with train/ and val/, or one folder a class
  OPTION  of 'labkit train adasum', such as --batch_size 32
From the environment: DEVICE_NUM, devices of each server (default 8), and MASTER, HOST:PORT of the
first one; or RANK_TABLE_FILE, which says both. LOG_DIR (default RUN-log)"
    [ $# -ge 2 ] || refuse "expected a folder"
    data_folder "$2"
    SERVER_ID=$1
    data=$2
    shift 2
    [ -z "${LOG_DIR-}" ] || set -- --log_dir "$LOG_DIR" "$@"
    if [ -n "${RANK_TABLE_FILE-}" ]; then
        [ -f "$RANK_TABLE_FILE" ] || refuse "RANK_TABLE_FILE is $RANK_TABLE_FILE, which is not a file"
        set -- --rank_table "$RANK_TABLE_FILE" "$@"
    else
        [ -n "${MASTER-}" ] || refuse "expected MASTER=HOST:PORT or RANK_TABLE_FILE"
        set -- --ranks "${DEVICE_NUM:-8}" --nodes 2 --master "$MASTER" "$@"
    fi
    labkit train adasum --node_rank "$SERVER_ID" --data_path "$data" "$@"
}

# evaluate_thor SETTINGS DATA CHECKPOINT [CONFIG] [OPTION ...]: SETTINGS by name, or "".
evaluate_thor() {
    usage="usage: $(basename "$0") DATA CHECKPOINT [CONFIG] [OPTION ...]
  DATA        folder with ilsvrc/ and ilsvrc_eval/, or train/ and val/
  CHECKPOINT  RUN/ckpt_0/resnet-EPOCH_STEP.ckpt or RUN/checkpoint/step-N.ckpt of a training
  CONFIG      YAML file of settings, such as the models repository's
  OPTION      of 'labkit eval thor', such as --batch_size 32"
    settings=$1
    shift
    data_and_checkpoint "$@"
    data=$1
    checkpoint=$2
    shift 2
    if config_first "$@"; then set -- --config "$@"; fi
    set -- --data_path "$data" --checkpoint_path "$checkpoint" "$@"
    [ -z "$settings" ] || set -- --settings "$settings" "$@"
    labkit eval thor "$@"
}

data_and_checkpoint() {
    [ $# -ge 2 ] || refuse "expected a folder and a checkpoint"
    data_folder "$1"
    [ -f "$2" ] || refuse "$2 is not a file"
}

# Of the tutorials' scripts: succeed where the next argument is FILE of settings and no option.
config_first() {
    case ${1-} in '' | -*) return 1 ;; esac
    [ -f "$1" ] || refuse "$1 is not a file"
}
