#!/bin/sh
# THOR on several GPUs of this machine: run_distribute_train_gpu.sh DATA [CONFIG] [OPTION ...]
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
usage="usage: $(basename "$0") DATA [CONFIG] [OPTION ...]
  DATA        folder with ilsvrc/ and ilsvrc_eval/, or train/ and val/
  CONFIG      YAML file of settings, such as the models repository's
  OPTION      of 'labkit train thor', such as --batch_size 32
From the environment: DEVICES (default 8), LOG_DIR (default RUN-log)"
[ $# -ge 1 ] || refuse "expected a folder"
data_folder "$1"
data=$1
shift
if config_first "$@"; then set -- --config "$@"; fi
on_ranks "${DEVICES-8}" train thor --settings gpu --mpirun --data_path "$data" "$@"
