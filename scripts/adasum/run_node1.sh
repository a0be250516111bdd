#!/bin/sh
# usage: run_node1.sh DATA [OPTION ...]
# Adasum on the devices of two servers, of which this is number 0.
#   DATA    folder with train/ and val/, or one folder a class
#   OPTION  of 'labkit train adasum', such as --batch_size 32
# From the environment: DEVICE_NUM, devices of each server (default 8), and MASTER, HOST:PORT of the
# first one; or RANK_TABLE_FILE, which says both. LOG_DIR (default RUN-log)
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
[ $# -ge 1 ] || refuse "expected a folder"
[ -z "${LOG_DIR-}" ] || set -- "$@" --log_dir "$LOG_DIR"
if [ -n "${RANK_TABLE_FILE-}" ]; then
    set -- "$@" --rank_table "$RANK_TABLE_FILE"
else
    [ -n "${MASTER-}" ] || refuse "expected MASTER=HOST:PORT or RANK_TABLE_FILE"
    set -- "$@" --ranks "${DEVICE_NUM:-8}" --nodes 2 --master "$MASTER"
fi
labkit train adasum --node_rank 0 --data_path "$@"
