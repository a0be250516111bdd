#!/bin/sh
# usage: run_eval.sh DATA CHECKPOINT [OPTION ...]
# Evaluate a checkpoint of ResNet-50.
#   DATA        folder with val/, or one folder a class
#   CHECKPOINT  RUN/checkpoint/step-N.safetensors of a training
#   OPTION      of 'labkit eval resnet50', such as --batch_size 32
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
[ $# -ge 2 ] || refuse "expected a folder and a checkpoint"
data=$1
shift
labkit eval resnet50 --data_path "$data" --checkpoint_path "$@"
