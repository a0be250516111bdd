#!/bin/sh
# usage: run_standalone_train.sh DATA [OPTION ...]
# Train ResNet-50 on one device.
#   DATA    folder with train/ and val/, or one folder a class
#   OPTION  of 'labkit train resnet50', such as --batch_size 32
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
[ $# -ge 1 ] || refuse "expected a folder"
labkit train resnet50 --data_path "$@"
