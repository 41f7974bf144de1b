#!/usr/bin/env bash
# deploy/torch-wheel.sh - fetches LibTorch with CUDA from PyPI into its own folder; the system stays
# as it is.
#
#     deploy/torch-wheel.sh [--choose auto|debian|wheel] [DIR]
#
# Prints the folder for -DGOSSIPD_TORCH_DIR=…, or nothing where Debian's LibTorch is the right one.
# `auto`, the default unless GOSSIPD_TORCH says otherwise, takes the wheel on a box with an NVIDIA
# driver. DIR is build/torch by default, otherwise a new or empty folder, or one that this script
# has made. Needs python3 with venv and about 6 GB. Fetches only what is missing.
set -euo pipefail

version=2.15.0  # built and tested with it
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
driver=${GOSSIPD_NVIDIA_DRIVER:-/proc/driver/nvidia/version}  # present where there is a driver

fail() {
  printf 'torch-wheel: %s\n' "$1" >&2
  exit "${2:-1}"
}

choice=${GOSSIPD_TORCH:-auto}
folder=$root/build/torch
while (($#)); do
  case $1 in
    --choose) choice=${2:-}; shift ;;
    -h | --help) sed -nE '2,/^set /{/^set /d; s/^# ?//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) fail "unknown option '$1'; --help lists them" 2 ;;
    *) folder=$(realpath -m -- "$1") ;;
  esac
  (($#)) && shift
done

has_gpu() {
  [[ -r $driver ]] ||
    { command -v nvidia-smi >/dev/null && nvidia-smi --list-gpus >/dev/null 2>&1; }
}

case $choice in
  debian) exit 0 ;;
  wheel) ;;
  auto) has_gpu || exit 0 ;;
  *) fail "'$choice' is none of auto, debian and wheel (--choose, or GOSSIPD_TORCH)" 2 ;;
esac

without_wheel="choose Debian's LibTorch, without CUDA, by GOSSIPD_TORCH=debian"
torch_of() { echo "$folder/venv/lib/python3"*/site-packages/torch; }
is_there() { [[ $(cat "$folder/version" 2>/dev/null) == "$version" ]]; }
if ! is_there; then
  # What is removed is another version of ours, or half of one.
  if [[ -n $(ls -A -- "$folder" 2>/dev/null) && ! -e $folder/version && ! -e $folder/log ]] ||
    [[ -e $folder && ! -d $folder ]]; then
    fail "$folder holds other things; name a new or an empty folder" 2
  fi
  mkdir -p -- "$folder"
  exec 9>"$folder.lock"
  if ! flock --nonblock 9; then
    printf 'waiting for another torch-wheel.sh that fetches into %s\n' "$folder" >&2
    flock 9
  fi
fi
if ! is_there; then
  printf 'fetching LibTorch %s with CUDA into %s (some GB)\n' "$version" "$folder" >&2
  python3 -c 'import ensurepip, venv' 2>/dev/null ||
    fail "python3 cannot make a virtual environment; install python3-venv, or $without_wheel"
  rm -rf -- "$folder/venv" "$folder/version" "$folder/log"
  log=$folder/log
  {
    python3 -m venv "$folder/venv" &&
      "$folder/venv/bin/pip" install --disable-pip-version-check --no-cache-dir "torch==$version"
  } >"$log" 2>&1 ||
    fail "torch $version could not be fetched ($(tail -n 1 "$log")); log: $log; $without_wheel"
  echo "$version" >"$folder/version"
fi
[[ -e $(torch_of)/lib/libtorch.so ]] ||
  fail "$folder holds an incomplete wheel; remove it and start again"
torch_of
