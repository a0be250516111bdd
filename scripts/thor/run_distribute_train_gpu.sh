#!/bin/sh
# usage: run_distribute_train_gpu.sh DATA [CONFIG] [OPTION ...]
# THOR on several GPUs of this machine, started by msrun. To start them by mpirun yourself:
# mpirun -n 8 python -m labkit.recipes train thor --settings gpu --run_distribute True ...
#   DATA    folder with ilsvrc/ and ilsvrc_eval/, or train/ and val/
#   CONFIG  YAML file of settings, such as the models repository's
#   OPTION  of 'labkit train thor', such as --batch_size 32
# From the environment: DEVICES (default 8), LOG_DIR (default RUN-log), MASTER_PORT (a free one)
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
[ $# -ge 1 ] || refuse "expected a folder"
data=$1
shift
case ${1-} in *.yaml | *.yml) set -- --config "$@" ;; esac
on_ranks "${DEVICES:-8}" train thor --settings gpu --data_path "$data" "$@"
