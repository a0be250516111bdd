#!/bin/sh
# First stage of dimension reduction: run_stage_1.sh DATA [OPTION ...]
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
usage="usage: $(basename "$0") DATA [OPTION ...]
  DATA    folder with train/ and val/, or one folder a class
  OPTION  of 'labkit train subspace-1', such as --batch_size 32
From the environment: DEVICES (default 8), LOG_DIR (default RUN-log), MASTER_PORT (a free one)"
[ $# -ge 1 ] || refuse "expected a folder"
data_folder "$1"
on_ranks "${DEVICES-8}" train subspace-1 --data_path "$@"
