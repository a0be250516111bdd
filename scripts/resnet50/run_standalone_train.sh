#!/bin/sh
# Train on one device: run_standalone_train.sh DATA [OPTION ...]
set -eu
. "$(dirname "$0")/common.sh"
usage="usage: $(basename "$0") DATA [OPTION ...]
  DATA    folder with train/ and val/, or one folder a class
  OPTION  of 'python -m labkit.recipes.resnet50 train', such as --set batch_size=32"
[ $# -ge 1 ] || refuse "expected a folder"
data_folder "$1"
data=$1
shift
run "$python" -m labkit.recipes.resnet50 train --dataset_path "$data" "$@"
