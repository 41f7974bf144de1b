#!/usr/bin/env bash
# tests/fuzz/campaign.sh - runs fuzz targets from new random seeds and counts what they execute.
#
#     tests/fuzz/campaign.sh BUILD SECONDS [TARGET ...]
#
# Runs the named targets, or all, one after the other, each for SECONDS. BUILD is a build directory
# of preset fuzz. Findings stay in BUILD/tests/fuzz/found/TARGET; keep.py turns them into
# corpus/TARGET. ctest looks for leaks, where it costs less. Fails if a target did; the input is
# then in BUILD/tests/fuzz, and belongs in corpus/TARGET as regression-WHAT once it is mended.
set -euo pipefail

if (($# < 2)) || [[ ! -d $1/bin || ! $2 =~ ^[0-9]+$ ]]; then
  echo "usage: tests/fuzz/campaign.sh BUILD SECONDS [TARGET ...]" >&2
  exit 2
fi
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
build=$(cd -- "$1" && pwd)
seconds=$2
targets=("${@:3}")
((${#targets[@]})) ||
  mapfile -t targets < <(cd "$build/bin" && printf '%s\n' fuzz_* |
    sed '/^fuzz_make_seeds$/d; s/^fuzz_//')

# New kernels randomise addresses more than the sanitizers of clang 14 can handle.
runner=(setarch "$(uname -m)" --addr-no-randomize)
"${runner[@]}" true 2>/dev/null || runner=()

work=$build/tests/fuzz
job=$here/../../deploy/jobs/fashion-mnist.toml
"$build/bin/fuzz_make_seeds" "$work/seeds" "$job" "$here/corpus"

failed=0 sum=0
export ASAN_OPTIONS=malloc_context_size=0:quarantine_size_mb=16${ASAN_OPTIONS:+:$ASAN_OPTIONS}
for target in "${targets[@]}"; do
  log=$work/$target.log verdict=ok
  mkdir -p "$work/found/$target" "$here/corpus/$target"
  "${runner[@]}" "$build/bin/fuzz_$target" -max_total_time="$seconds" \
    -max_len="$(<"$work/$target.max_len")" -entropic=0 -timeout=10 -detect_leaks=0 \
    -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$work/$target-" \
    "$work/found/$target" "$work/seeds/$target" "$here/corpus/$target" >"$log" 2>&1 ||
    verdict="FAILED, see $log" failed=1
  count=$(sed -nE 's/^stat::number_of_executed_units: *([0-9]+)$/\1/p' "$log")
  sum=$((sum + ${count:-0}))
  printf '%-12s %12s  %s\n' "$target" "${count:-0}" "$verdict"
done
printf '%-12s %12s\n' "in all" "$sum"
exit "$failed"
