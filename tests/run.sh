#!/usr/bin/env bash
# tests/run.sh - from a fresh checkout: installs, builds and runs every test under ctest.
#
# Goes through the parts below one after the other, even when an earlier one fails, and ends with
# the line "N passed, N failed". A part that does not build counts as one failure. Build logs and
# ctest's reports are in build/test-logs/.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
logs=$root/build/test-logs
parts_all=(unit e2e asan tsan fuzz)
parts_asked=(slow wheel python packages arm64 gpu)  # run only when named

usage() {
  cat <<'TEXT'
usage: tests/run.sh [--only PART] ... [--bundle DIR]
  --only may be repeated; by default every PART above the line runs:
  unit   preset dev, warnings as errors: unit tests, simulator, style
  e2e    preset dev: real processes on this machine, and what deploy/ hands out
  asan   preset asan: unit tests and simulator under AddressSanitizer and UndefinedBehaviorSanitizer
  tsan   preset tsan: unit tests without LibTorch under ThreadSanitizer (not the simulator, which
         has one thread); preset no-torch must configure
  fuzz   preset fuzz: each fuzz target for a short time
  ------
  slow   preset dev: real processes for up to an hour, and the comparison with rivals
  wheel  preset dev-wheel: unit tests and real processes that use LibTorch, with PyPI's in place of
         Debian's (deploy/torch-wheel.sh; fetches 2.7 GB)
  python the Python package, installed from its wheel, with the real torch, transformers, peft,
         lightning, JAX and wandb of tests/python/requirements.txt (fetches 3 GB)
  packages  preset release: the Debian packages in clean roots, and what deploy/ has for others who
         run software (fetches 400 MB)
  arm64  the tests of codecs and mixing, compiled for ARM and run by QEMU (fetches 70 MB)
  gpu    preset release-wheel: what needs an NVIDIA card (tests/gpu/README.md; fetches 2.7 GB).
         With --bundle DIR nothing is fetched or built: its programs run on the LibTorch of python3
TEXT
}

parts=()
bundle=
while (($#)); do
  case $1 in
    --only)
      (($# >= 2)) || { usage >&2; exit 2; }
      parts+=("$2")
      shift
      ;;
    --bundle)
      (($# >= 2)) || { usage >&2; exit 2; }
      bundle=$(realpath -- "$2")
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
if [[ $bundle && ${parts[*]} != gpu ]]; then
  echo "run.sh: --bundle goes with --only gpu and nothing else" >&2
  exit 2
fi
((${#parts[@]})) || parts=("${parts_all[@]}")
for part in "${parts[@]}"; do
  [[ " ${parts_all[*]} ${parts_asked[*]} " == *" $part "* ]] || { usage >&2; exit 2; }
done

passed=0
failed=0
summary=()

note() {
  summary+=("$1")
  printf '==== %s\n' "$1"
}

# A part in which nothing ran ($2 passed, $3 failed) has shown nothing, and counts as one failure.
nothing_ran() {
  (($2 + $3 == 0)) || return 0
  failed=$((failed + 1))
  note "$1: fails, since none of its tests ran"
}

# Configures preset $1 with `options` and builds the targets that follow, or all.
options=()
build() {
  local preset=$1 log=$logs/$1-build.log began=$SECONDS
  shift
  printf '==== %s: building\n' "$preset"
  if {
    cmake --preset "$preset" "${options[@]}" &&
      cmake --build --preset "$preset" --parallel "$(nproc)" ${1:+--target "$@"}
  } >"$log" 2>&1; then
    printf '==== %s: built in %s s\n' "$preset" $((SECONDS - began))
    return 0
  fi
  grep -E 'error|FAILED' "$log" | head -n 20 || true
  tail -n 20 "$log"
  failed=$((failed + 1))
  note "$preset: does not build; its log is $log"
  return 1
}

# The sanitizers' presets, and what is built of each.
declare -A sanitized=([asan]=checks [tsan]=checks [fuzz]=fuzzers)

# Starts to build what the parts asked for need of these, with what other processes leave of the
# processors: e2e's mostly wait. `built_ahead` reads the name of each preset that is done.
built_ahead=
build_ahead() {
  local idle=(nice -n 19) preset
  chrt --idle 0 true 2>/dev/null && idle=(chrt --idle 0)
  exec {built_ahead}< <(
    for preset in "${parts[@]}"; do
      [[ ${sanitized[$preset]:-} ]] || continue
      {
        "${idle[@]}" cmake --preset "$preset" &&
          "${idle[@]}" cmake --build --preset "$preset" --parallel "$(nproc)" \
            --target "${sanitized[$preset]}"
      } >"$logs/$preset-ahead.log" 2>&1 || break
      echo "$preset"
    done
  )
}

# Builds preset $1 of these, once no build ahead is at work on it; says why where it fails.
build_sanitized() {
  local built
  if [[ $built_ahead ]]; then
    while read -r -u "$built_ahead" built && [[ $built != "$1" ]]; do :; done
  fi
  build "$1" "${sanitized[$1]}"
}

# Runs ctest on preset $2 with the arguments that follow, as part $1, and counts its results.
tests_at_once=$(nproc)
check() {
  local part=$1 preset=$2 report=$logs/$1.txt began=$SECONDS ok bad skipped
  shift 2
  "${runner[@]}" ctest --test-dir "build/$preset" --output-on-failure --no-tests=error \
    --parallel "$tests_at_once" --output-junit "$logs/$part.xml" --test-output-size-passed 100000 \
    "$@" \
    2>&1 | tee "$report" || true
  # "97% tests passed, 1 tests failed out of 30"
  read -r bad ok < <(
    sed -nE 's/.* tests passed, ([0-9]+) tests failed out of ([0-9]+)$/\1 \2/p' "$report"
    echo "1 1"
  )
  # ctest counts these as passed.
  skipped=$(grep -cE 'Test +#[0-9]+: .*\*\*\*Skipped' "$report" || true)
  ok=$((ok - bad - skipped))
  failed=$((failed + bad))
  passed=$((passed + ok))
  note "$part: $ok passed, $bad failed, $skipped skipped in $((SECONDS - began)) s"
  nothing_ran "$part" "$ok" "$bad"
  # Name the tests that needed another try, and what was skipped.
  local times name how
  while read -r times name how; do
    case $how in
      Skipped) note "$part: $name was skipped, see $logs/$part.xml" ;;
      *) note "$part: $name failed $times time(s), see $report" ;;
    esac
  done < <(
    sed -nE 's/.*Test +#[0-9]+: ([^ ]+) \.+ *\*\*\*(Skipped)?.*/\1 \2/p' "$report" | sort | uniq -c
  )
  while read -r name how; do
    note "$part: a part of $name was skipped: $how"
  done < <(skipped_parts "$logs/$part.xml")
}

# What unittest, pytest -rs and doctest's cases skipped in tests that ran otherwise: lines "<test>
# <reason>", from ctest's XML $1.
skipped_parts() {
  awk '
    /<testcase / { split($0, words, "\""); name = /status="notrun"/ ? "" : words[2] }
    name && match($0, /\.\.\. skipped |^SKIPPED \[[0-9]+\] |MESSAGE: skipped: /) {
      print name, substr($0, RSTART + RLENGTH)
    }
  ' "$1"
}

# The inputs that all fuzz targets executed. libFuzzer prints the count at the end of a run, so
# ctest must keep the end of the output.
executions() {
  sed -nE 's/.*stat::number_of_executed_units: *([0-9]+).*/\1/p' "$logs/fuzz.xml" |
    awk '{sum += $1} END {print sum + 0}'
}

# The wheel with our programs in an environment of its own, and all of tests/python in there.
check_python() {
  local venv=$root/build/python-venv log=$logs/python-install.log report=$logs/python.txt
  local ok bad skipped
  local pip=("$venv/bin/pip" install --disable-pip-version-check --quiet)
  if ! {
    /usr/bin/python3 -m venv "$venv" && "${pip[@]}" -r tests/python/requirements.txt &&
      wheel=$("$venv/bin/python" tools/python/build_wheel.py build/python --bin build/dev/bin) &&
      "${pip[@]}" --force-reinstall --no-deps "$wheel"
  } >"$log" 2>&1; then
    failed=$((failed + 1))
    note "python: could not be installed ($(tail -n 1 "$log")); its log is $log"
    return
  fi
  GOSSIPD_TEST_INSTALLED=1 GOSSIPD_BIN_DIR=$root/build/dev/bin OMP_NUM_THREADS=1 \
    timeout 3600 "$venv/bin/python" -m pytest -q -rs -p no:cacheprovider tests/python 2>&1 |
    tee "$report" || true
  # Without the words at its end it was stopped for taking too long.
  ok=$(grep -oE '[0-9]+ passed' "$report" | tail -n 1 | cut -d' ' -f1)
  bad=$(grep -oE '[0-9]+ (failed|error)' "$report" | awk '{sum += $1} END {print sum + 0}')
  skipped=$(grep -oE '[0-9]+ skipped' "$report" | tail -n 1 | cut -d' ' -f1)
  [[ -n $ok ]] || bad=$((bad + 1))
  passed=$((passed + ${ok:-0}))
  failed=$((failed + bad))
  note "python: ${ok:-0} passed, $bad failed, ${skipped:-0} skipped${skipped:+, see $report}"
}

# Sets `options` for PyPI's LibTorch, which part $1 needs.
with_wheel() {
  local torch
  if torch=$("$root/deploy/torch-wheel.sh" --choose wheel); then
    options=("-DGOSSIPD_TORCH_DIR=$torch")
    return 0
  fi
  failed=$((failed + 1))
  note "$1: LibTorch could not be fetched"
  return 1
}

# Takes the counts of a script whose report, $2, has the line "N passed, N failed".
count() {
  local ok bad
  read -r ok bad < <(
    sed -nE 's/^([0-9]+) passed, ([0-9]+) failed$/\1 \2/p' "$2" | tail -n 1
    echo "0 1"
  )
  passed=$((passed + ok))
  failed=$((failed + bad))
  note "$1: $ok passed, $bad failed"
  nothing_ran "$1" "$ok" "$bad"
}

# What needs a card; the arguments go to its script. It ends with "N passed, N failed".
check_gpu() {
  python3 -u tests/gpu/run_gpu.py --json build/gpu.json "$@" 2>&1 | tee "$logs/gpu.txt" || true
  count gpu "$logs/gpu.txt"
}

# New kernels randomise addresses more than the sanitizers of GCC 12 and clang 14 can handle.
runner=()
plain_addresses() {
  runner=(setarch "$(uname -m)" --addr-no-randomize)
  "${runner[@]}" true 2>/dev/null || runner=()
}

# One test exhausts memory on purpose and expects malloc to return null.
asan=allocator_may_return_null=1:detect_leaks=1:detect_stack_use_after_return=1
export ASAN_OPTIONS="$asan:strict_string_checks=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export LSAN_OPTIONS="suppressions=$root/tests/lsan.supp:print_suppressions=0"
export UBSAN_OPTIONS="print_stacktrace=1"
export TSAN_OPTIONS="suppressions=$root/tests/tsan.supp:halt_on_error=1:second_deadlock_stack=1"

run_part() {
  runner=()
  options=()
  case $1 in
    unit) build dev && check unit dev --exclude-regex '^(e2e|deploy)\.' ;;
    # Real processes in real time on a shared machine: a failing test gets two more tries and is
    # named. They wait more than they compute, so one more than processors runs at a time.
    e2e)
      build dev && build_ahead &&
        tests_at_once=$(($(nproc) + 1)) check e2e dev --tests-regex '^(e2e|deploy)\.' \
          --label-exclude slow --repeat until-pass:3
      ;;
    slow) build dev && check slow dev --tests-regex '^e2e\.' --label-regex slow ;;
    asan)
      plain_addresses
      build_sanitized asan && check asan asan
      ;;
    tsan)
      plain_addresses
      if ! cmake --preset no-torch >"$logs/no-torch.log" 2>&1; then
        failed=$((failed + 1))
        note "no-torch: does not configure; its log is $logs/no-torch.log"
      fi
      build_sanitized tsan && check tsan tsan
      ;;
    fuzz)
      plain_addresses
      build_sanitized fuzz && check fuzz fuzz --test-output-truncation head || return
      note "fuzz: $(executions) inputs executed"
      (($(executions) > 0))
      ;;
    python) build dev gossipd-core gossipctl && check_python ;;
    wheel)
      with_wheel wheel && build dev-wheel || return
      check wheel-unit dev-wheel --tests-regex '^unit\.(models|lab)'
      check wheel dev-wheel --tests-regex '^e2e\.' --label-exclude slow --repeat until-pass:2
      ;;
    arm64)
      "$root/deploy/install-packages.sh" --arm64 || return
      tests/arm64.sh 2>&1 | tee "$logs/arm64.txt" || true
      count arm64 "$logs/arm64.txt"
      ;;
    gpu)
      if [[ $bundle ]]; then
        check_gpu --bundle "$bundle"
      else
        with_wheel gpu && build release-wheel gossipd gossipctl gpu_tests gpu_blocks && check_gpu
      fi
      ;;
    packages)
      "$root/deploy/install-packages.sh" --tests --packages || return
      build release && check packages release --tests-regex '^deploy\.' --label-regex slow
      ;;
  esac
}

cd "$root"
mkdir -p "$logs"
[[ $bundle ]] || "$root/deploy/install-packages.sh" --tests
# Nothing in run_part ends this script: `||` takes `set -e` from it. What failed there counts, and a
# part that ends with an error for any other reason as one failure.
for part in "${parts[@]}"; do
  failed_before=$failed
  run_part "$part" || ((failed > failed_before)) || {
    failed=$((failed + 1))
    note "$part: ended with an error; see above"
  }
done

printf '\n'
printf '%s\n' "${summary[@]}" "total time: $SECONDS s"
printf '%s passed, %s failed\n' "$passed" "$failed"
((failed == 0))
