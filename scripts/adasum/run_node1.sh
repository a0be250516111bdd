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
on_two_servers 0 adasum "$@"
