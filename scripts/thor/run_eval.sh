#!/bin/sh
# Evaluate a checkpoint: run_eval.sh DATA CHECKPOINT [CONFIG] [OPTION ...]
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
evaluate_thor "" "$@"
