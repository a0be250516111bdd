#!/bin/sh
# usage: run_distribute_train.sh DEVICES DATA [OPTION ...]
# Train ResNet-50 on several devices of this machine.
#   DEVICES  number of ranks, one device each
#   DATA     folder with train/ and val/, or one folder a class
#   OPTION   of 'labkit train resnet50', such as --batch_size 32
# From the environment: LOG_DIR (default RUN-log), MASTER_PORT (a free one)
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
[ $# -ge 2 ] || refuse "expected a number of devices and a folder"
devices=$1
shift
on_ranks "$devices" train resnet50 --data_path "$@"
