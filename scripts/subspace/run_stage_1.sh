#!/bin/sh
# usage: run_stage_1.sh DATA [OPTION ...]
# The first stage of dimension reduction.
#   DATA    folder with train/ and val/, or one folder a class
#   OPTION  of 'labkit train subspace-1', such as --batch_size 32
# From the environment: DEVICES (default 8), LOG_DIR (default RUN-log), MASTER_PORT (a free one)
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
[ $# -ge 1 ] || refuse "expected a folder"
on_ranks "${DEVICES:-8}" train subspace-1 --data_path "$@"
