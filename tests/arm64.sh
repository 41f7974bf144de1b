#!/usr/bin/env bash
# tests/arm64.sh - the unit tests of codecs and mixing on ARM: compiled by Debian's cross compiler,
# run by QEMU. Replicas at two ends of a link must have the same bits, also where one end is ARM.
#
# Needs what deploy/install-packages.sh --arm64 installs. Ends with "N passed, N failed".
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
out=build/arm64
mkdir -p "$out/include"
# The headers that no architecture has to itself; all of /usr/include would hide the compiler's.
ln -sfn /usr/include/doctest /usr/include/xxhash.h "$out/include/"

# The flags of CMakeLists.txt and core/CMakeLists.txt that decide the bits.
compile=(
  aarch64-linux-gnu-g++ -std=c++20 -O3 -DNDEBUG -ffp-contract=off -fno-fast-math -static
  -fno-trapping-math -I. -isystem "$out/include"
)
"${compile[@]}" -o "$out/codec_tests" core/codec/{codec,kernels,kernels_baseline,sparse_sum}.cpp \
  tests/unit/{main,core_{codec,kernels,kernels_bits,kernels_narrow,sparse_sum}_test}.cpp

report=$(qemu-aarch64-static "$out/codec_tests" --no-colors) || true
printf '%s\n' "$report"
sed -nE 's/^.* test cases: .* ([0-9]+ passed) \| +([0-9]+ failed).*/\1, \2/p' <<<"$report"
