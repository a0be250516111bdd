#!/bin/sh
# Adasum on two servers, the first of them: run_node1.sh DATA [OPTION ...]
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
two_servers 0 "$@"
