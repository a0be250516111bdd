#!/bin/sh
# Second stage of dimension reduction: run_stage_2.sh DATA CHECKPOINT [PCA_MAT.npy] [OPTION ...]
set -eu
. "$(dirname "$0")/common.sh"
usage="usage: $(basename "$0") DATA CHECKPOINT [PCA_MAT.npy] [OPTION ...]
  DATA         folder with train/ and val/, or one folder a class
  CHECKPOINT   RUN/checkpoint/step-N.ckpt of the first stage; its snapshots are in
               RUN/checkpoint_pca
  PCA_MAT.npy  a basis of an earlier run, with its .json: then none is computed
  OPTION       of 'python -m labkit.recipes.subspace_stage_2 train', such as --set trials=2
From the environment: DEVICES (default 8), LOG_DIR (default runs/subspace/subspace_stage_2-log),
MASTER_PORT (default 8118)"
[ $# -ge 2 ] || refuse "expected a folder and a checkpoint"
data_folder "$1"
[ -f "$2" ] || refuse "$2 is no file"
data=$1
checkpoint=$2
shift 2
case ${1-} in
*.npy)
    [ -f "$1" ] || refuse "$1 is no file"
    basis=$1
    shift
    set -- --set "pca_mat_path=$basis" "$@"
    ;;
esac
start subspace_stage_2 "$data" --set "pretrained_weight_path=$checkpoint" "$@"
