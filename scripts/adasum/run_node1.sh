#!/bin/sh
# Adasum on two servers, the first of them: run_node1.sh DATA [OPTION ...]
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
usage="usage: $(basename "$0") DATA [OPTION ...]
  DATA    folder with train/ and val/, or one folder a class
  OPTION  of 'labkit train adasum', such as --batch_size 32
From the environment: DEVICE_NUM, devices of each server (default 8), and MASTER, HOST:PORT of the
first one; or RANK_TABLE_FILE, which says both. LOG_DIR (default RUN-log)"
[ $# -ge 1 ] || refuse "expected a folder"
data_folder "$1"
# Its ranks are SERVER_ID * DEVICE_NUM and those that follow.
SERVER_ID=0
two_servers "$@"
