#!/bin/sh
# usage: run_distribute_train.sh RANK_TABLE DATA [CONFIG] [OPTION ...]
# THOR on the devices of a rank table.
#   RANK_TABLE  of scripts/rank_table.py
#   DATA        folder with ilsvrc/ and ilsvrc_eval/, or train/ and val/
#   CONFIG      YAML file of settings, such as scripts/configs/thor_ascend.yaml
#   OPTION      of 'labkit train thor', such as --batch_size 32
# From the environment: SERVER_ID, this server's place in the table (default 0)
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
[ $# -ge 2 ] || refuse "expected a rank table and a folder"
table=$1 data=$2
shift 2
case ${1-} in *.yaml | *.yml) set -- --config "$@" ;; esac
labkit train thor --rank_table "$table" --data_path "$data" "$@"
