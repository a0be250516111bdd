#!/bin/sh
# Evaluate a checkpoint: run_eval.sh DATA CHECKPOINT [OPTION ...]
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
usage="usage: $(basename "$0") DATA CHECKPOINT [OPTION ...]
  DATA        folder with val/, or one folder a class
  CHECKPOINT  RUN/checkpoint/step-N.ckpt of a training
  OPTION      of 'labkit eval resnet50', such as --batch_size 32"
data_and_checkpoint "$@"
data=$1
checkpoint=$2
shift 2
labkit eval resnet50 --data_path "$data" --checkpoint_path "$checkpoint" "$@"
