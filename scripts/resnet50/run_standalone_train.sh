#!/bin/sh
# Train on one device: run_standalone_train.sh DATA [OPTION ...]
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
usage="usage: $(basename "$0") DATA [OPTION ...]
  DATA    folder with train/ and val/, or one folder a class
  OPTION  of 'labkit train resnet50', such as --batch_size 32"
[ $# -ge 1 ] || refuse "expected a folder"
data_folder "$1"
labkit train resnet50 --data_path "$@"
