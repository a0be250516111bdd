#!/bin/sh
# Adasum on two servers, the second of them: run_node2.sh DATA [OPTION ...]
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
two_servers 1 "$@"
