#!/bin/sh
# usage: run_eval_gpu.sh DATA CHECKPOINT [CONFIG] [OPTION ...]
# Evaluate a checkpoint of THOR.
#   DATA        folder with ilsvrc/ and ilsvrc_eval/, or train/ and val/
#   CHECKPOINT  of a training: RUN/train_parallel/ckpt_0/resnet-EPOCH_STEP.ckpt or
#               RUN/checkpoint/step-N.safetensors
#   CONFIG      YAML file of settings, such as scripts/configs/thor_gpu.yaml
#   OPTION      of 'labkit eval thor', such as --batch_size 32
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
[ $# -ge 2 ] || refuse "expected a folder and a checkpoint"
data=$1 checkpoint=$2
shift 2
case ${1-} in *.yaml | *.yml) set -- --config "$@" ;; esac
labkit eval thor --settings gpu --data_path "$data" --checkpoint_path "$checkpoint" "$@"
