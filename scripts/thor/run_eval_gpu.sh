#!/bin/sh
# Evaluate a checkpoint: run_eval_gpu.sh DATA CHECKPOINT [CONFIG] [OPTION ...]
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
usage="usage: $(basename "$0") DATA CHECKPOINT [CONFIG] [OPTION ...]
  DATA        folder with ilsvrc/ and ilsvrc_eval/, or train/ and val/
  CHECKPOINT  RUN/ckpt_0/resnet-EPOCH_STEP.ckpt or RUN/checkpoint/step-N.ckpt of a training
  CONFIG      YAML file of settings, such as the models repository's
  OPTION      of 'labkit eval thor', such as --batch_size 32"
data_and_checkpoint "$@"
data=$1
checkpoint=$2
shift 2
if config_first "$@"; then set -- --config "$@"; fi
labkit eval thor --settings gpu --data_path "$data" --checkpoint_path "$checkpoint" "$@"
