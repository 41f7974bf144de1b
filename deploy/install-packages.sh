#!/usr/bin/env bash
# deploy/install-packages.sh - the Debian 12 packages that gossipd is built from.
#
# Installs only what is missing and asks nothing; with everything there it ends at once and needs no
# network. As root, or through a sudo that needs no password.
#
#     deploy/install-packages.sh [--tests]
set -euo pipefail

to_build=(
  g++ cmake ninja-build ccache pkg-config
  libtorch-dev libgloo-dev libopenblas0-pthread libboost1.81-dev libssl-dev libspdlog-dev
  nlohmann-json3-dev libtomlplusplus-dev libcli11-dev libxxhash-dev prometheus-cpp-dev
  zlib1g-dev libturbojpeg0-dev libpng-dev libstb-dev
  doctest-dev libbenchmark-dev python3-venv
  dataset-fashion-mnist jq curl
)
to_test=(clang libclang-rt-14-dev clang-format-14 python3 python3-torch iproute2 openssl prometheus)

usage() {
  cat <<'TEXT'
usage: deploy/install-packages.sh [--tests]
  Installs the Debian packages that gossipd is built from, where they are missing.
  --tests   those of tests/run.sh as well: clang with its sanitizers, clang-format, python3 with
            torch, iproute2, openssl, prometheus
TEXT
}

fail() {
  printf 'install-packages: %s\n' "$*" >&2
  exit 1
}

packages=("${to_build[@]}")
case "${1:-}" in
  "") ;;
  --tests) packages+=("${to_test[@]}") ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  fail "this is not Debian; install the counterparts of these packages: ${packages[*]}"
fi

# Prints those of the packages that are not installed.
missing() {
  local installed
  # dpkg-query fails when it knows nothing of one of them, and still names the others.
  installed=$(dpkg-query --show --showformat '${db:Status-Status} ${Package}\n' \
    "${packages[@]}" 2>/dev/null || true)
  comm -13 <(awk '$1 == "installed" { print $2 }' <<<"$installed" | sort -u) \
    <(printf '%s\n' "${packages[@]}" | sort -u)
}

mapfile -t wanted < <(missing)
if ((${#wanted[@]} == 0)); then
  echo "packages: all ${#packages[@]} are installed"
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  sudo -n true 2>/dev/null ||
    fail "packages are missing, and installing them needs root; run this once:" \
      "su -c 'apt-get update && apt-get install ${wanted[*]}'"
  as_root=(sudo -n)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() {
  "$@" >"$log" 2>&1 </dev/null && return
  tail -n 30 "$log" >&2
  fail "this failed: $*"
}

echo "packages: installing ${#wanted[@]}: ${wanted[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a
  apt-get -q -o DPkg::Lock::Timeout=300)
quietly "${apt[@]}" update
quietly "${apt[@]}" install --yes --no-install-recommends "${wanted[@]}"
mapfile -t wanted < <(missing)
((${#wanted[@]} == 0)) || fail "apt-get ended well, but these are still missing: ${wanted[*]}"
