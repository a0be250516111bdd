#!/bin/sh
# usage: run_stage_1.sh DATA [OPTION ...]
# The first stage of dimension reduction.
#   DATA    folder with train/ and val/, or one folder a class
#   OPTION  of 'labkit train subspace-1', such as --batch_size 32
# From the environment: DEVICES, the number of ranks (default 8)
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
[ $# -ge 1 ] || refuse "expected a folder"
labkit train subspace-1 --ranks "${DEVICES:-8}" --data_path "$@"
