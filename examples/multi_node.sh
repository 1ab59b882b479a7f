#!/usr/bin/env bash
# The run of qwen3_8b_8gpu.yaml over several hosts: start this on every host with the same three variables.
#   HOSTS=4 HEAD=10.0.0.1 RUN=qwen3-8b examples/multi_node.sh
# The model is sharded inside a host and replicated over the hosts. output must lie on storage that all hosts see.
set -euo pipefail
: "${HOSTS:?number of hosts}" "${HEAD:?address of one of them}" "${RUN:?a name for this run}"
exec torchrun --nnodes "$HOSTS" --nproc-per-node 8 \
    --rdzv-backend c10d --rdzv-endpoint "$HEAD:29500" --rdzv-id "$RUN" \
    -m sparrow_core.cli train examples/qwen3_8b_8gpu.yaml \
    parallel.dp_replicate="$HOSTS" parallel.dp_shard=8 "$@"
