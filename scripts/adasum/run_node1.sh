#!/bin/sh
# usage: run_node1.sh DATA [OPTION ...]
# Adasum on the devices of two servers, of which this is number 0.
#   DATA    folder with train/ and val/, or one folder a class
#   OPTION  of 'labkit train adasum', such as --batch_size 32
# From the environment: RANK_TABLE_FILE, of scripts/rank_table.py (default rank_table_16pcs.json), and
# MASTER_PORT, a free one of server 0 (default 8118)
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
[ $# -ge 1 ] || refuse "expected a folder"
export SERVER_ID=0
labkit train adasum --rank_table "${RANK_TABLE_FILE:-rank_table_16pcs.json}" --data_path "$@"
