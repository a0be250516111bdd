#!/bin/sh
# usage: run_stage_2.sh DATA CHECKPOINT [PCA_MAT] [OPTION ...]
# The second stage of dimension reduction.
#   DATA        folder with train/ and val/, or one folder a class
#   CHECKPOINT  of the first stage, RUN/device0_stage_1/checkpoint_stage_1/resnet-E_S.ckpt; its
#               snapshots are in checkpoint_pca beside it
#   PCA_MAT     a basis of an earlier run, .safetensors or .npy: then none is computed
#   OPTION      of 'labkit train subspace-2', such as --trials 2
# From the environment: DEVICES, the number of ranks (default 8)
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
[ $# -ge 2 ] || refuse "expected a folder and a checkpoint"
data=$1 checkpoint=$2
shift 2
case ${1-} in
*.npy | *.safetensors)
    [ -f "$1" ] || refuse "$1 is not a file" # else a basis would be computed and saved there
    set -- --pca_mat_path "$@"
    ;;
esac
labkit train subspace-2 --ranks "${DEVICES:-8}" --data_path "$data" \
    --pretrained_weight_path "$checkpoint" "$@"
