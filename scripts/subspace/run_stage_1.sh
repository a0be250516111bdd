#!/bin/sh
# First stage of dimension reduction: run_stage_1.sh DATA [OPTION ...]
set -eu
. "$(dirname "$0")/common.sh"
usage="usage: $(basename "$0") DATA [OPTION ...]
  DATA    folder with train/ and val/, or one folder a class
  OPTION  of 'python -m labkit.recipes.subspace_stage_1 train', such as --set batch_size=32
From the environment: DEVICES (default 8), LOG_DIR (default runs/subspace/subspace_stage_1-log),
MASTER_PORT (default 8118)"
[ $# -ge 1 ] || refuse "expected a folder"
data_folder "$1"
start subspace_stage_1 "$@"
