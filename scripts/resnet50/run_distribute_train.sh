#!/bin/sh
# Train on several devices of this machine: run_distribute_train.sh DEVICES DATA [OPTION ...]
set -eu
. "$(dirname "$0")/common.sh"
usage="usage: $(basename "$0") DEVICES DATA [OPTION ...]
  DEVICES  number of ranks, one device each
  DATA     folder with train/ and val/, or one folder a class
  OPTION   of 'python -m labkit.recipes.resnet50 train', such as --set batch_size=32
From the environment: LOG_DIR (default runs/resnet50-log), MASTER_PORT (default 8118)"
[ $# -ge 2 ] || refuse "expected a number of devices and a folder"
case $1 in '' | *[!0-9]* | 0*) refuse "DEVICES is '$1', expected a number of at least 1" ;; esac
data_folder "$2"
devices=$1
data=$2
shift 2
logs=${LOG_DIR:-runs/resnet50-log}
mkdir -p "$logs"
# msrun starts "python": that of the environment must come first.
PATH="$(dirname "$python"):$PATH"
export PATH
status=0
msrun --worker_num "$devices" --local_worker_num "$devices" --join True --log_dir "$logs" \
    --master_port "${MASTER_PORT:-8118}" \
    python -m labkit.recipes.resnet50 train --dataset_path "$data" --run_distribute True \
    --device_num "$devices" "$@" >"$logs/msrun.log" 2>&1 || status=$?
tail -n 20 "$logs/worker_0.log" 2>/dev/null || tail -n 20 "$logs/msrun.log"
[ $status -eq 0 ] || echo "$(basename "$0"): failed; the logs are in $logs" >&2
exit $status
