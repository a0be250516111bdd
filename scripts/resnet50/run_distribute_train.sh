#!/bin/sh
# usage: run_distribute_train.sh DEVICES DATA [OPTION ...]
# Train ResNet-50 on several devices of this machine.
#   DEVICES  number of ranks, one device each
#   DATA     folder with train/ and val/, or one folder a class
#   OPTION   of 'labkit train resnet50', such as --batch_size 32
# The ranks' logs are in runs/resnet50-log.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
[ $# -ge 2 ] || refuse "expected a number of devices and a folder"
devices=$1
shift
labkit train resnet50 --ranks "$devices" --data_path "$@"
