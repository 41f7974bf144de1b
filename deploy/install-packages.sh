#!/usr/bin/env bash
# deploy/install-packages.sh - the Debian 12 or Ubuntu 24.04 packages that gossipd is built from.
#
# Installs only what is missing and asks nothing; with everything there it ends at once and needs no
# network. As root, or through a sudo that needs no password. Of Boost it takes any from 1.81 on,
# the oldest that the release has: 1.81 on Debian 12, 1.83 on Ubuntu 24.04. A release without
# libtorch-dev builds with PyPI's LibTorch (deploy/torch-wheel.sh), and it says so.
#
#     deploy/install-packages.sh [--tests] [--packages] [--arm64] [--dry-run]
set -euo pipefail

to_build=(
  g++ cmake ninja-build ccache pkg-config
  libtorch-dev libgloo-dev libopenblas0-pthread libssl-dev libspdlog-dev
  nlohmann-json3-dev libtomlplusplus-dev libcli11-dev libxxhash-dev prometheus-cpp-dev
  libncurses-dev zlib1g-dev libturbojpeg0-dev libpng-dev libstb-dev
  doctest-dev libbenchmark-dev python3-venv
  dataset-fashion-mnist jq curl
)
to_test=(
  clang libclang-rt-14-dev clang-format-14 iproute2 openssl prometheus systemd
  python3 python3-numpy python3-torch python3-pytest python3-pip python3-setuptools python3-wheel
)
to_test+=(python3-jsonschema zsh fish mandoc chromium chromium-driver)
to_package=(
  mmdebstrap lintian slurmctld slurmd slurm-client munge
  avahi-daemon avahi-utils dbus
  podman runc netavark aardvark-dns iptables podman-compose docker-compose
)
to_emulate_arm64=(g++-aarch64-linux-gnu qemu-user-static)
# Where the release has none of these, gossipd can be built all the same.
declare -A without=(
  [libtorch-dev]="take PyPI's LibTorch: deploy/torch-wheel.sh --choose wheel prints its folder"
  [libgloo-dev]="several devices of one node then exchange through the host's memory"
  [dataset-fashion-mnist]="tests and quickstart need another source of Fashion-MNIST"
)

usage() {
  cat <<'TEXT'
usage: deploy/install-packages.sh [--tests] [--packages] [--arm64] [--dry-run]
  Installs the Debian packages that gossipd is built from, where they are missing.
  --tests   those of tests/run.sh as well: clang with its sanitizers, clang-format, iproute2,
            openssl, prometheus, chromium, systemd, python3 with torch, pytest and what builds
            wheels, python3-jsonschema, the shells zsh and fish, mandoc
  --packages   those of `tests/run.sh --only packages`: mmdebstrap, lintian, Slurm,
            Avahi, podman and what it needs, podman-compose, docker-compose
  --arm64      those of `tests/run.sh --only arm64`: a compiler for ARM and QEMU
  --dry-run    prints what would be installed, as apt knows it now
TEXT
}

fail() {
  printf 'install-packages: %s\n' "$*" >&2
  exit 1
}

packages=("${to_build[@]}")
dry_run=no
for word; do
  case $word in
    --tests) packages+=("${to_test[@]}") ;;
    --packages) packages+=("${to_package[@]}") ;;
    --arm64) packages+=("${to_emulate_arm64[@]}") ;;
    --dry-run) dry_run=yes ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

boost_least=81  # 1.81
# Prints the minor versions of libboost1.N-dev among the lines of standard input that are recent
# enough, the oldest first.
recent_boosts() {
  sed -nE 's/^libboost1\.([0-9]+)-dev( .*|$)/\1/p' | sort -nu |
    awk -v least="$boost_least" '$1 >= least'
}

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

has_boost() {
  local any
  any=$(dpkg-query --show --showformat '${Package} ${db:Status-Status}\n' 'libboost1.*-dev' \
    2>/dev/null | grep ' installed$' | recent_boosts)
  [[ -n $any ]]
}

# Sets `wanted` to what is missing and can be had, and says what cannot.
choose() {
  local package minor kept=()
  mapfile -t wanted < <(missing)
  for package in "${wanted[@]}"; do
    if [[ -v without[$package] ]] && ! apt-cache show "$package" >/dev/null 2>&1; then
      printf 'packages: this release has no %s; %s\n' "$package" "${without[$package]}" >&2
    else
      kept+=("$package")
    fi
  done
  wanted=("${kept[@]}")
  has_boost && return
  minor=$(apt-cache search --names-only '^libboost1\.[0-9]+-dev$' | recent_boosts | sed -n 1p)
  [[ -n $minor ]] ||
    fail "this release has no Boost 1.$boost_least or later (libboost1.N-dev); use Debian 12," \
      "Ubuntu 24.04 or a later one"
  wanted+=("libboost1.$minor-dev")
}

mapfile -t wanted < <(missing)
if ((${#wanted[@]} == 0)) && has_boost; then
  [[ $dry_run == yes ]] || echo "packages: all ${#packages[@]} and Boost are installed"
  exit 0
fi
if [[ $dry_run == yes ]]; then
  choose
  ((${#wanted[@]} == 0)) || printf '%s\n' "${wanted[@]}"
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  sudo -n true 2>/dev/null || {
    choose
    fail "packages are missing, and installing them needs root; run this once:" \
      "su -c 'apt-get update && apt-get install ${wanted[*]}'"
  }
  as_root=(sudo -n)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() {
  "$@" >"$log" 2>&1 </dev/null && return
  tail -n 30 "$log" >&2
  fail "this failed: $*"
}

apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a
  apt-get -q -o DPkg::Lock::Timeout=300)
quietly "${apt[@]}" update
choose
if ((${#wanted[@]} == 0)); then
  echo "packages: all that this release has are installed"
  exit 0
fi
echo "packages: installing ${#wanted[@]}: ${wanted[*]}"
quietly "${apt[@]}" install --yes --no-install-recommends "${wanted[@]}"
choose 2>/dev/null
((${#wanted[@]} == 0)) || fail "apt-get ended well, but these are still missing: ${wanted[*]}"
