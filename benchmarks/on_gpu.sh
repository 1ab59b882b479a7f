#!/usr/bin/env bash
# Everything that is checked and timed on one GPU, in stages that do not stop each other.
#
#   benchmarks/on_gpu.sh OUT STAGE...      (PYTHON names the interpreter; default python3)
#
# MODEL is the SmolLM2 checkpoint of the stages that train. Logs and raw results (JSON) go to OUT. Each stage has its
# own time limit in seconds: STAGE or STAGE:LIMIT.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$1
shift
mkdir -p "$out"
python=${PYTHON:-python3}
sparrow="$python -m sparrow_core.cli"
gpu_tests="tests/kernels tests/backends tests/model/test_attention_gpu.py tests/engine/test_device_engine_cuda.py"
four=(--case random:qwen3-1.7b:32:16384:128 --case random:qwen3-1.7b:24:32768:256
    --case random:qwen3-4b:16:32768:256 --case random:qwen3-8b:16:32768:256)
fast="rollout.engine=device rollout.compile=true"

run_stage() {
    case $1 in
    tests) $python -m pytest -n 12 --dist load $gpu_tests ;;
    engine-tests) $python -m pytest -n 4 --dist load --tb short tests/engine/test_device_engine_cuda.py tests/model/test_attention_gpu.py ;;
    decode-small) $sparrow bench decode --case random:qwen3-1.7b:32:16384:128 --rounds 5 --json "$out/decode-small.json" rollout.engine=device ;;
    decode-compiled) $sparrow bench decode --case random:qwen3-1.7b:32:16384:128 --rounds 5 --json "$out/decode-compiled.json" \
        $fast ;;
    decode) $sparrow bench decode "${four[@]}" --json "$out/decode-h200.json" $fast ;;
    decode-all-sparse) $sparrow bench decode "${four[@]}" --no-dense-layers --json "$out/decode-all-sparse-h200.json" \
        $fast ;;
    kernels) $sparrow bench kernels --json "$out/kernels-h200.json" ;;
    plan) $sparrow bench plan --model random:qwen3-1.7b --length 32768 --check --json "$out/plan-h200.json" ;;
    engine) $python benchmarks/engine_gpu.py --model random:qwen3-1.7b --batch 32 --length 16384 --pages 128 \
        --json "$out/engine-h200.json" rollout.compile=true ;;
    steady-*) # steady-1.7b:..., at the batch of the published tables
        local -A batch=([1.7b]=64 [4b]=48 [8b]=44 [14b]=36)
        local size=${1#steady-}
        $sparrow bench rollout --steady --model "random:qwen3-$size" --batch "${batch[$size]}" --length 32768 --rounds 5 \
            --json "$out/$1-h200.json" $fast &&
            $sparrow bench rollout --steady --no-dense-layers --model "random:qwen3-$size" --batch "${batch[$size]}" \
                --length 32768 --rounds 5 --json "$out/$1-all-sparse-h200.json" $fast ;;
    trajectory) $sparrow bench rollout --trajectory --model random:qwen3-1.7b --batch 32 --length 32768 --rounds 3 --repeats 5 \
        --json "$out/trajectory-h200.json" $fast ;;
    end-to-end) $sparrow bench rollout --end-to-end --model random:qwen3-1.7b --batch 32 --length 16384 --rounds 3 --repeats 5 \
        --json "$out/end-to-end-h200.json" $fast ;;
    transformers) $python benchmarks/transformers_gpu.py --case random:qwen3-1.7b:32:16384:128 \
        --json "$out/transformers-h200.json" $fast ;;
    memcheck) compute-sanitizer --tool memcheck --error-exitcode 9 $python -m pytest -q -x tests/kernels -k "${MEMCHECK:-decode or score or append}" ;;
    rl-sparse | rl-dense) # 50 steps of SmolLM2; RL_STEPS for fewer, RL_SETTINGS for more key=value
        local policy=()
        [ "$1" = rl-dense ] && policy=(policy=dense)
        $sparrow train examples/smollm2_gpu.yaml model.source="$MODEL" output="$runs/$1" train.steps="${RL_STEPS:-50}" \
            ${policy[@]+"${policy[@]}"} ${RL_SETTINGS:-}
        local status=$?
        gzip -c "$runs/$1/metrics.jsonl" >"$out/$1.jsonl.gz"
        return $status ;;
    *) echo "unknown stage $1" >&2; return 2 ;;
    esac
}

for stage in "$@"; do
    name=${stage%%:*}
    limit=${stage#*:}
    [ "$limit" = "$name" ] && limit=600
    export -f run_stage
    start=$(date +%s)
    (
        export out python sparrow gpu_tests fast runs="${RUNS:-/tmp/sparrow-runs}"
        timeout --signal=INT --kill-after=15 "$limit" bash -c "$(declare -p four); $(declare -f run_stage); run_stage $name"
    ) >"$out/$name.log" 2>&1
    status=$?
    echo "== $name: exit $status after $(($(date +%s) - start)) s"
    tail -n "${TAIL:-12}" "$out/$name.log"
done
