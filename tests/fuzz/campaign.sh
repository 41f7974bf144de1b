#!/usr/bin/env bash
# tests/fuzz/campaign.sh - lets fuzz targets search on, from seeds drawn anew, and counts what they execute.
#
#     tests/fuzz/campaign.sh BUILD SECONDS [TARGET ...]     each target so long, one after the other; all unless named
#
# BUILD is a build directory of preset fuzz. What is found stays in BUILD/tests/fuzz/found/TARGET; keep.py makes corpus/TARGET of it.
# Leaks are looked for under ctest, where it costs less.
# Ends with a failure if a target did; its input then lies in BUILD/tests/fuzz, and in corpus/TARGET as regression-WHAT once it is mended.
set -euo pipefail

if (($# < 2)) || [[ ! -d $1/bin || ! $2 =~ ^[0-9]+$ ]]; then
  sed -n '4s/^# *//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
build=$(cd -- "$1" && pwd)
seconds=$2
targets=("${@:3}")
((${#targets[@]})) || mapfile -t targets < <(cd "$build/bin" && ls -d fuzz_* | sed 's/^fuzz_//' | grep -v '^make_seeds$')

# The sanitizers of clang 14 do not know address spaces as random as new kernels make them.
runner=()
if setarch "$(uname -m)" --addr-no-randomize true 2>/dev/null; then runner=(setarch "$(uname -m)" --addr-no-randomize); fi

work=$build/tests/fuzz
"$build/bin/fuzz_make_seeds" "$work/seeds" "$here/../../deploy/jobs/fashion-mnist.toml" "$here/corpus"

failed=0 sum=0
export ASAN_OPTIONS=malloc_context_size=0:quarantine_size_mb=16${ASAN_OPTIONS:+:$ASAN_OPTIONS}
for target in "${targets[@]}"; do
  log=$work/$target.log verdict=ok
  mkdir -p "$work/found/$target" "$here/corpus/$target"
  "${runner[@]}" "$build/bin/fuzz_$target" -max_total_time="$seconds" -max_len="$(<"$work/$target.max_len")" -entropic=0 -timeout=10 -detect_leaks=0 -rss_limit_mb=1024 -print_final_stats=1 \
    -artifact_prefix="$work/$target-" "$work/found/$target" "$work/seeds/$target" "$here/corpus/$target" >"$log" 2>&1 ||
    verdict="FAILED, see $log" failed=1
  count=$(sed -nE 's/^stat::number_of_executed_units: *([0-9]+)$/\1/p' "$log")
  sum=$((sum + ${count:-0}))
  printf '%-12s %12s  %s\n' "$target" "${count:-0}" "$verdict"
done
printf '%-12s %12s\n' "in all" "$sum"
exit "$failed"
