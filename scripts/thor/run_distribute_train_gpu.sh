#!/bin/sh
# usage: run_distribute_train_gpu.sh DATA [CONFIG] [OPTION ...]
# THOR on several GPUs of this machine, started by msrun. To start them by mpirun yourself:
# mpirun -n 8 python -m labkit.recipes train thor --settings gpu --run_distribute True ...
#   DATA    folder with ilsvrc/ and ilsvrc_eval/, or train/ and val/
#   CONFIG  YAML file of settings, such as scripts/configs/thor_gpu.yaml
#   OPTION  of 'labkit train thor', such as --batch_size 32
# From the environment: DEVICES, the number of ranks (default 8)
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
[ $# -ge 1 ] || refuse "expected a folder"
data=$1
shift
case ${1-} in *.yaml | *.yml) set -- --config "$@" ;; esac
labkit train thor --settings gpu --ranks "${DEVICES:-8}" --data_path "$data" "$@"
