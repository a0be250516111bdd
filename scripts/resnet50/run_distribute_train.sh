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
run_ranks "$devices" "${LOG_DIR:-runs/resnet50-log}" labkit.recipes.resnet50 train \
    --dataset_path "$data" --run_distribute True --device_num "$devices" "$@"
