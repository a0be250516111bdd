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
    if [ "$devices" -eq 1 ]; then
        run "$python" -m "labkit.recipes.$recipe" train --dataset_path "$data" "$@"
        exit
    fi
    run_ranks "$devices" "${LOG_DIR:-runs/subspace/$recipe-log}" "labkit.recipes.$recipe" train \
        --dataset_path "$data" --run_distribute True --device_num "$devices" "$@"
}
