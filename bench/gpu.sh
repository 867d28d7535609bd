#!/usr/bin/env bash
# Measure on this host, one step a call; a step that was stopped continues where it was.
#
# usage: bench/gpu.sh STEP...
#   model    make the benchmark model
#   tokens   stock, compact and a wrong row: tokens and TPOT
#   bf16     compact, BF16 KV and FlashMLA, interleaved
#   fp8      compact and Triton, interleaved
#   prefix   time to first token after a cached prefix, compact and BF16 KV, interleaved; a trace
#   prefill-graph  the same without a prefix, under breakable prefill graphs
#   speculation  stock, compact, BF16 KV and FlashMLA, interleaved, each with the same draft, of
#            which every step accepts two of three tokens
#   pool     compact at pools of 131,072 and 2,000,000, interleaved
#   kernels  attention alone, strategies interleaved
#   verify   the same for verify steps of several query tokens a request
#
#   MODEL     folder of the model (default: /tmp/bench-model)
#   RESULTS   folder of the JSON files (default: out/results); figures of another card or of other
#             versions, such as those of bench/results, are refused, and stay
#   POOL      KV tokens of each engine, but for the step pool (default: 495552, and 300032 in
#             the step speculation)
#   STEP_SECONDS  time after which a step stops, keeping its records (default: 480)
# exit: 0 done; 1 a check failed; 2 usage, or a host that can't measure; 124 out of time, run the
# same step again; 130 interrupted
set -euo pipefail
cd "$(dirname "$0")/.."

model=${MODEL:-/tmp/bench-model}
model=${model%/}
results=${RESULTS:-out/results}
python=${PYTHON:-python3}

limited() {
    timeout --foreground --signal=TERM --kill-after=40 "${STEP_SECONDS:-480}" "$python" -m "$@"
}

attempt() { # MODULE MORE...
    local status=0
    limited "$@" || status=$?
    case $status in
        0) ;;
        1) failed=1 ;; # told above; what remains can still be measured
        *) exit "$status" ;;
    esac
}

serve() { # FILE SETUPS LOADS MORE...
    local file=$1 setups=$2 loads=$3
    shift 3
    # shellcheck disable=SC2086
    attempt bench.serve run --model "$model" --out "$results/$file" --pool "${POOL:-495552}" \
        --logs "${TMPDIR:-/tmp}/bench-logs" --setups $setups --loads $loads "$@"
}

count_launches() { # FILE: of the traces that were recorded with it
    if compgen -G "$results/traces/*.gz" >/dev/null; then
        attempt bench.launches "$results/traces" --out "$results/launches.json"
    else
        echo "no trace in $results/traces: remove $results/$1 to record them" >&2
    fi
}

make_model() {
    [ -f "$model/config.json" ] || limited bench.model "$model"
}

make_draft() {
    [ -f "$model-draft/config.json" ] || limited bench.draft "$model-draft"
}

cached="1x2048+256"
goals="1x100 1x8192 1x65536 16x8192 64x2048"
# Engines that are up at once: each counts what the others hold as used.
together="--interleave --fraction 0.95"
known="model tokens bf16 fp8 prefix prefill-graph speculation pool kernels verify"
verified="8x4:1x65536 8x4:16x8192 8x8:16x8192 16x2:64x2048 16x4:1x8192 16x4:1x65536 16x4:16x8192
16x4:64x2048 16x8:1x65536 16x8:16x8192 32x4:16x8192 64x4:1x65536 64x4:16x8192 128x4:64x2048"
[ $# -gt 0 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
for step in "$@"; do
    case " $known " in
        *" $step "*) ;;
        *)
            echo "bench/gpu.sh: no step '$step'; run it without arguments for the list." >&2
            exit 2
            ;;
    esac
done
"$python" -m bench.ready || exit
# Repeats find their prompts cached: these steps are about decode, and prefill takes far longer.
decode="--tokens 64 --option disable_radix_cache=false"
# Prefill is launched by the host, which is noisier than the device.
first_token="--repeats 41 --tokens 4"
failed=0
for step in "$@"; do
    case $step in
        model) make_model ;;
        tokens)
            make_model
            # shellcheck disable=SC2086
            serve tokens.json "stock compact wrong-row" "1x100 1x8192 16x8192 64x2048" $together \
                --repeats 3
            ;;
        bf16)
            make_model
            # shellcheck disable=SC2086
            serve bf16.json "bf16 compact flashmla" "$goals" $together $decode
            ;;
        fp8)
            make_model
            # shellcheck disable=SC2086
            serve fp8.json "compact triton" "$goals" $together $decode
            ;;
        prefix)
            make_model
            # shellcheck disable=SC2086
            serve prefix.json "bf16 compact" "$cached" $together $first_token \
                --trace "$results/traces"
            count_launches prefix.json
            ;;
        prefill-graph)
            make_model
            # sglang 0.5.17 runs a DeepSeek prompt without a graph once a prefix of it is cached.
            # shellcheck disable=SC2086
            serve prefill-graph.json "bf16 compact" "1x2048" $together $first_token \
                --option disable_prefill_cuda_graph=false \
                --option 'cuda_graph_backend_prefill="breakable"'
            ;;
        speculation)
            make_model
            make_draft
            # A pool of whole pages of FlashMLA; four engines leave no room for the larger one.
            # shellcheck disable=SC2086
            serve speculation.json "bf16 compact flashmla stock" \
                "1x8192 1x65536 16x8192 32x2048" $together $decode --accept 3 \
                --pool "${POOL:-300032}" --option max_running_requests=32 \
                --option cuda_graph_bs_decode=[1,16,32]
            ;;
        pool)
            make_model
            # shellcheck disable=SC2086
            serve pool.json "pool-131072 pool-2000000" "1x100 1x8192 16x1024" $together \
                --tokens 64 --repeats 15
            ;;
        kernels)
            limited bench.kernels --missing --out "$results/kernels.json"
            ;;
        verify)
            # shellcheck disable=SC2086
            limited bench.kernels --missing --out "$results/verify.json" --points $verified \
                --strategies bf16-fa3 bf16-fa2 gather-fa3 direct direct-ragged direct-small
            ;;
    esac
done
exit "$failed"
