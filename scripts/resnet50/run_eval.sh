#!/bin/sh
# Evaluate a checkpoint: run_eval.sh DATA CHECKPOINT [OPTION ...]
set -eu
. "$(dirname "$0")/common.sh"
usage="usage: $(basename "$0") DATA CHECKPOINT [OPTION ...]
  DATA        folder with val/, or one folder a class
  CHECKPOINT  RUN/checkpoint/step-N.ckpt of a training
  OPTION      of 'python -m labkit.recipes.resnet50 eval', such as --set batch_size=32"
[ $# -ge 2 ] || refuse "expected a folder and a checkpoint"
data_folder "$1"
[ -f "$2" ] || refuse "$2 is no file"
data=$1
checkpoint=$2
shift 2
run "$python" -m labkit.recipes.resnet50 eval --dataset_path "$data" \
    --checkpoint_path "$checkpoint" "$@"
