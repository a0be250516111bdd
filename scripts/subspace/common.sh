# What the scripts beside it share; each sets $usage.
. "$(dirname "$0")/../resnet50/common.sh"

# start RECIPE DATA [OPTION ...]: train on $DEVICES devices of this machine.
start() {
    devices=${DEVICES-8}
    case $devices in '' | *[!0-9]* | 0*)
        refuse "DEVICES is '$devices', expected a number of at least 1" ;;
    esac
    recipe=$1
    data=$2
    shift 2
    [ "$devices" -gt 1 ] ||
        exec "$python" -m "labkit.recipes.$recipe" train --dataset_path "$data" "$@"
    logs=${LOG_DIR:-runs/subspace/$recipe-log}
    mkdir -p "$logs"
    # msrun starts "python": that of the environment must come first.
    PATH="$(dirname "$python"):$PATH"
    export PATH
    status=0
    msrun --worker_num "$devices" --local_worker_num "$devices" --join True --log_dir "$logs" \
        --master_port "${MASTER_PORT:-8118}" \
        python -m "labkit.recipes.$recipe" train --dataset_path "$data" --run_distribute True \
        --device_num "$devices" "$@" >"$logs/msrun.log" 2>&1 || status=$?
    tail -n 20 "$logs/worker_0.log" 2>/dev/null || tail -n 20 "$logs/msrun.log"
    [ $status -eq 0 ] || echo "$(basename "$0"): failed; the logs are in $logs" >&2
    exit $status
}
