#!/usr/bin/env bash
# deploy/quickstart.sh - from a fresh Debian 12 to a trained model, with one command.
#
# Installs packages, builds, starts daemons on loopback that train one model, each on its own part
# of the data, shows how they get on and stops them. The last line of output is the result as JSON.
# Everything it writes lies under build/; a new run starts afresh. `--help` lists the options.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
ports_first=7610
ports_last=7999
start_limit_s=60  # until the founder has written the key, and until a daemon answers
end_limit_s=60    # from the last node's end until all have measured the final model
stop_limit_s=30   # from SIGTERM to the end of a process

usage() {
  cat <<TEXT
usage: deploy/quickstart.sh [options]
  --nodes N          daemons to start (default 3)
  --exchange on|off  off: each trains alone, for comparison
  --job FILE         what to train (default deploy/jobs/fashion-mnist.toml)
  --data DIR         where the job's data lies (default /usr/share/datasets/fashion-mnist)
  --seed N           another random seed than the job's
  --set KEY=VALUE    a setting for every daemon, for example exchange.codec=int8; may be repeated
  --torch WHICH      LibTorch: debian (CPU), wheel (PyPI's, with CUDA, in build/torch), or auto:
                     wheel where there is an NVIDIA driver (default auto; also GOSSIPD_TORCH)
  --keep             leave the daemons running at the end
  --stop             stop daemons that were left running, and exit
  --dir DIR          state and logs (default build/quickstart)
  --bin DIR          take gossipd and gossipctl from DIR; install and build nothing
  --help
TEXT
}

say() { printf '%s\n' "$*"; }
fail() {
  printf 'quickstart: %s\n' "$1" >&2
  exit "${2:-1}"
}

# ---- options

nodes=3
exchange=on
job=$root/deploy/jobs/fashion-mnist.toml
data=/usr/share/datasets/fashion-mnist
seed=
settings=()
torch=${GOSSIPD_TORCH:-auto}
keep=no
only_stop=no
state=$root/build/quickstart
programs=

while (($#)); do
  case $1 in
    --nodes | --exchange | --job | --data | --seed | --set | --torch | --dir | --bin)
      (($# >= 2)) || fail "$1 needs a value; --help lists the options" 2
      ;;&
    --nodes) nodes=$2; shift ;;
    --exchange) exchange=$2; shift ;;
    --job) job=$(realpath -m -- "$2"); shift ;;
    --data) data=$(realpath -m -- "$2"); shift ;;
    --seed) seed=$2; shift ;;
    --set) settings+=(--set "$2"); shift ;;
    --torch) torch=$2; shift ;;
    --dir) state=$(realpath -m -- "$2"); shift ;;
    --bin) programs=$(realpath -m -- "$2"); shift ;;
    --keep) keep=yes ;;
    --stop) only_stop=yes ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; fail "unknown option '$1'" 2 ;;
  esac
  shift
done
[[ $nodes =~ ^[1-9][0-9]?$ ]] || fail "--nodes: '$nodes' is not a number from 1 to 99" 2
[[ $exchange == on || $exchange == off ]] || fail "--exchange: '$exchange' is neither on nor off" 2
[[ -z $seed || $seed =~ ^(0|[1-9][0-9]*)$ ]] || fail "--seed: '$seed' is not a number" 2
[[ $torch == auto || $torch == debian || $torch == wheel ]] ||
  fail "--torch: '$torch' is none of auto, debian and wheel" 2
[[ -f $job && -r $job ]] || fail "--job: $job cannot be read, or is no file" 2

# ---- daemons

pids=()
rest=()
kept=no  # yes: the daemons are no longer this script's to stop
seeded=  # the job with another seed

# The process ID of a daemon that an earlier run left here, if it still lives.
left_running() {
  local pid file=$1/pid
  [[ -r $file ]] && pid=$(<"$file") && [[ $pid =~ ^[0-9]+$ && -r /proc/$pid/cmdline ]] || return 0
  tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | grep -Fxq -- "$1/state" && echo "$pid"
  return 0
}

alive() { [[ -d /proc/$1 && $(awk '/^State:/ { print $2 }' "/proc/$1/status" 2>/dev/null) != Z ]]; }

# SIGTERM, then wait: a daemon writes its checkpoint and takes leave of its neighbours.
stop_processes() {
  local pid deadline=$((SECONDS + stop_limit_s))
  for pid in "$@"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "$@"; do
    while alive "$pid" && ((SECONDS < deadline)); do sleep 0.1; done
    if alive "$pid"; then
      say "quickstart: process $pid did not stop within $stop_limit_s s and is killed" >&2
      kill -KILL "$pid" 2>/dev/null || true
    fi
  done
}

stop_left_running() {
  local directory old=()
  for directory in "$state"/node*; do
    [[ -d $directory ]] && mapfile -t -O "${#old[@]}" old < <(left_running "$directory")
  done
  ((${#old[@]})) || return 0
  say "stopping ${#old[@]} daemons of an earlier run"
  stop_processes "${old[@]}"
}

# Sets `port` to the next one on loopback on which nobody listens.
port=$((ports_first - 1))
next_port() {
  while ((++port <= ports_last)); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || return 0
  done
  fail "no free port from $ports_first to $ports_last"
}

show_log() {
  printf -- '---- the end of %s\n' "$1" >&2
  tail -n 25 "$1" >&2 || true
}

# Starts node number $1; further arguments go to gossipd. In a session of its own, so that Ctrl-C
# reaches only this script, which then stops it once.
start_node() {
  local number=$1 directory=$state/node$1
  shift
  mkdir -p "$directory"
  next_port
  local peer_port=$port
  next_port
  rest+=("127.0.0.1:$port")
  ((number > 1)) || founder=127.0.0.1:$peer_port
  OMP_NUM_THREADS=$threads OPENBLAS_NUM_THREADS=$threads setsid "$programs/gossipd" \
    --name "node$number" --state-dir "$directory/state" --key-file "$state/cluster.key" \
    --data "$data" --listen "127.0.0.1:$peer_port" --rest "127.0.0.1:$port" --threads "$threads" \
    --exchange "$exchange" "${settings[@]}" "$@" >"$directory/log" 2>&1 </dev/null &
  pids+=($!)
  echo $! >"$directory/pid"
}

# A daemon that ended by itself ends the whole run, with its last words.
check_alive() {
  local i code
  for i in "${!pids[@]}"; do
    alive "${pids[i]}" && continue
    end_viewer
    code=0
    wait "${pids[i]}" || code=$?
    show_log "$state/node$((i + 1))/log"
    unset 'pids[i]'
    fail "node$((i + 1)) ended with exit code $code; its log is $state/node$((i + 1))/log"
  done
}

# So does one whose training is over until a restart.
check_training() {
  local why
  why=$(jq --raw-output 'select(.phase == "broken" or (.trainer.failure // "") != "") |
    "\(.name)\(if (.trainer.failure // "") != "" then ": " + .trainer.failure else "" end)"' \
    <<<"$1")
  [[ -n $why ]] || return 0
  end_viewer
  fail "the training is broken at ${why//$'\n'/, }; logs: $state/node*/log"
}

say_kept() {
  local address where
  say "the daemons stay up:"
  for address in "${rest[@]}"; do
    say "  $(printf '%q' "$programs/gossipctl") --rest $address members"
  done
  where=$([[ $state == "$root/build/quickstart" ]] || printf ' --dir %q' "$state")
  say "stop them with: deploy/quickstart.sh --stop$where"
}

# Nobody may be left who hears a word, as when a terminal is closed: the daemons are stopped anyway.
on_exit() {
  local code=$?
  trap - EXIT
  trap '' INT TERM HUP PIPE
  set +e
  end_viewer
  [[ -z $seeded ]] || rm -f "$seeded"
  if [[ $kept == yes ]]; then
    ((code == 0)) || say_kept >&2
  elif ((${#pids[@]})); then
    ((code == 0)) || say "quickstart: stopping the daemons; logs are in $state/node*/log" >&2
    stop_processes "${pids[@]}"
  fi
  exit "$code"
}

# ---- build

build() {
  local log=$root/build/quickstart-build.log began=$SECONDS preset=release wheel
  mkdir -p "$root/build"
  wheel=$("$root/deploy/torch-wheel.sh" --choose "$torch")
  [[ -z $wheel ]] || preset=release-wheel
  say "building gossipd, gossipctl and gossip-export (log: $log)"
  cd "$root"
  if ! {
    cmake --preset "$preset" "-DGOSSIPD_TORCH_DIR=$wheel" &&
      cmake --build --preset "$preset" --parallel "$(nproc)" \
        --target gossipd gossipctl gossip-export
  } >"$log" 2>&1; then
    show_log "$log"
    fail "the build failed; its log is $log"
  fi
  programs=$root/build/$preset/bin
  say "built in $((SECONDS - began)) s"
}

# ---- progress

# What every node says about itself: one JSON object a line; nothing for one that does not answer.
statuses() {
  local address
  for address in "${rest[@]}"; do
    # -q, --noproxy: no file and no variable of the user sends this to another machine.
    curl -q --noproxy '*' --silent --fail --max-time 3 "http://$address/v1/status" || true
  done
}

# The first node and what it hears of the others: a screen, or a line every 10 s where standard
# output is no terminal. The screen's key q closes it; the training goes on.
viewer=
begin_viewer() {
  local keys=/dev/null
  [[ ! -t 0 || ! -t 1 ]] || keys=/dev/tty
  "$programs/gossipctl" --rest "${rest[0]}" top --until finished <"$keys" 9>&- &
  viewer=$!
}
# Until it has given the terminal back.
end_viewer() {
  [[ -n $viewer ]] || return 0
  kill -TERM "$viewer" 2>/dev/null || true
  wait "$viewer" 2>/dev/null || true
  viewer=
}

# True when the filter $2 holds for the statuses $1 of all nodes.
all_nodes() {
  jq --slurp --exit-status --argjson nodes "$nodes" "length == \$nodes and all(.[]; $2)" \
    <<<"$1" >/dev/null
}

# ---- the run

mkdir -p "$state"
exec 9>"$state.lock"
flock --nonblock 9 ||
  fail "another quickstart runs in $state; end it, or give this one its own --dir"
stop_left_running
[[ $only_stop == no ]] || exit 0

# What an earlier run left is removed, so the folder must be ours.
if [[ $state != "$root/build/quickstart" && ! -e $state/.quickstart && -n $(ls -A -- "$state") ]]
then
  fail "--dir: $state holds other things; name a new or an empty folder" 2
fi
[[ $job != "$state"/* ]] || fail "--job: $job lies in --dir, which is emptied; copy it elsewhere" 2
[[ -s $job ]] || fail "--job: $job is empty; deploy/jobs has examples" 2
touch "$state/.quickstart"

if [[ -z $programs ]]; then
  "$root/deploy/install-packages.sh"
  build
fi
[[ -x $programs/gossipd ]] || fail "there is no gossipd in $programs"
for tool in jq curl; do
  command -v "$tool" >/dev/null || fail "$tool is needed; deploy/install-packages.sh installs it"
done

trap on_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
trap 'exit 141' PIPE

rm -rf "$state"/node* "$state"/cluster.key "$state"/job.toml
# Beside the job, whose names of files begin there; in our own folder where that cannot be written.
if [[ -n $seed ]]; then
  seeded=$(mktemp "${job%/*}/.quickstart-XXXXXX.toml" 2>/dev/null) || seeded=$state/job.toml
  {
    echo "seed = $seed"
    sed -E '0,/^[[:space:]]*\[/{/^[[:space:]]*"?seed"?[[:space:]]*=/d}' "$job"
  } >"$seeded"
  job=$seeded
fi
threads=$(($(nproc) / nodes))
((threads > 0)) || threads=1

# Settings of the user's own nodes are not this run's.
for variable in "${!GOSSIPD_@}" "${!GOSSIPCTL_@}"; do unset "$variable"; done

# 9>&-: a daemon that is kept must not keep the lock.
say "starting $nodes daemons"
trained_from=$SECONDS
start_node 1 --job "$job" 9>&-
deadline=$((SECONDS + start_limit_s))
until [[ -s $state/cluster.key ]]; do
  check_alive
  ((SECONDS < deadline)) ||
    fail "node1 wrote no key within $start_limit_s s; its log is $state/node1/log"
  sleep 0.05
done
for ((number = 2; number <= nodes; ++number)); do start_node "$number" --join "$founder" 9>&-; done

deadline=$((SECONDS + start_limit_s))
until now=$(statuses) && all_nodes "$now" '.phase == "finished"'; do
  check_alive
  check_training "$now"
  [[ -z $now ]] || deadline=$((SECONDS + start_limit_s))
  ((SECONDS < deadline)) ||
    fail "no node answers at ${rest[*]} for $start_limit_s s; logs: $state/node*/log"
  [[ -n $viewer || -z $now ]] || begin_viewer
  sleep 1
done
seconds=$((SECONDS - trained_from))
deadline=$((SECONDS + end_limit_s))
measured='.checkpoints.final | .accuracy != null or .evaluation_loss != null'
until all_nodes "$now" "$measured"; do
  check_alive
  if ((SECONDS >= deadline)); then
    all_nodes "$now" true || fail "not every node answers at ${rest[*]}; logs: $state/node*/log"
    say "some nodes have not measured the final model within $end_limit_s s, as when no data are" \
      "held out; logs: $state/node*/log"
    break
  fi
  sleep 0.5
  now=$(statuses)
done
end_viewer
"$programs/gossipctl" --rest "${rest[0]}" members

# ---- the result

# shellcheck disable=SC2016
result=$(jq --compact-output --slurp --argjson seconds "$seconds" --arg exchange "$exchange" '{
  nodes: length,
  accuracy: map(.checkpoints.final.accuracy),
  consensus_distance: (if $exchange == "on" and length > 1
    then map(.consensus_distance) | max else null end),
  samples: (map(.cluster_samples) | max),
  steps: (map(.step) | add),
  bytes_sent: (map(.bytes_sent_total) | add),
  dense_baseline_bytes: (map(.dense_baseline_bytes) | add),
  seconds: $seconds,
  evaluation_loss: map(.checkpoints.final.evaluation_loss),
  checkpoint: .[0].checkpoints.final.path
}' <<<"$now")

say ""
say "finished in $seconds s; the trained model: $(jq --raw-output .checkpoint <<<"$result")"
if [[ $keep == yes ]]; then
  kept=yes
  say_kept
else
  stopping=("${pids[@]}")
  stop_processes "${stopping[@]}"
  pids=()
fi
say "$result"
