#!/usr/bin/env bash
# Runs one stage of this plan, run after run, inside the allocation it is started in (or on this machine).
#   ./run.sh STAGE [DISPATCHER]      with DISPATCHER, only its arms and the baseline's
# Settings: IMAGE (container, needs Slurm with pyxis), IMAGE_<ARM> for an arm that needs another one ('-' and '.' become
# '_'), MOUNTS, RUN_TIMEOUT (seconds of one run, default 3600), MASTER_PORT.
# A run whose log is complete is not repeated; one that failed is, and its log is kept beside the new one.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
stage=${1:?name a stage: screen, decide, accept or natural}
only=${2:-}
order="$here/stages/$stage.txt"
[ -f "$order" ] || { echo "run.sh: this plan has no stage '$stage'; it has: $(ls "$here/stages" | sed 's/.txt//' | tr '\n' ' ')" >&2; exit 2; }
export NNODES=@NODES@ GPUS_PER_NODE=@PER_NODE@
export MASTER_PORT=${MASTER_PORT:-29500}
export NCCL_DEBUG=${NCCL_DEBUG:-VERSION}
if [ -n "${SLURM_JOB_ID:-}" ]; then
  MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
else
  MASTER_ADDR=127.0.0.1
  [ "$NNODES" = 1 ] || { echo "run.sh: $NNODES nodes need a Slurm allocation; submit job.sbatch" >&2; exit 2; }
fi
export MASTER_ADDR
baseline=$(head -n 1 "$order" | cut -d' ' -f1)
failed=0

# What the logs do not say and a comparison asks for; the same for every run of the allocation but the image.
facts() {
  echo "hosts=$(if [ -n "${SLURM_JOB_ID:-}" ]; then scontrol show hostnames "$SLURM_JOB_NODELIST" | tr '\n' ' '; else hostname; fi)"
  echo "driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)"
  echo "cpu_affinity=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)"
  echo "container=${1:-none}"
}

image_of() {
  local variable
  variable="IMAGE_$(echo "$1" | tr -- '-.' '__')"
  echo "${!variable:-${IMAGE:-}}"
}

start() {
  local arm=$1 log=$2 image
  if [ -z "${SLURM_JOB_ID:-}" ]; then
    NODE_RANK=0 timeout --kill-after=30 "${RUN_TIMEOUT:-3600}" bash "$here/arms/$arm.sh" >"$log" 2>&1
    return
  fi
  image=$(image_of "$arm")
  timeout --kill-after=30 "${RUN_TIMEOUT:-3600}" \
    srun --nodes="$NNODES" --ntasks="$NNODES" --ntasks-per-node=1 --kill-on-bad-exit=1 \
    ${image:+--container-image="$image"} ${MOUNTS:+--container-mounts="$MOUNTS"} \
    bash -c 'NODE_RANK=$SLURM_NODEID exec bash "$0"' "$here/arms/$arm.sh" >"$log" 2>&1
}

while read -r arm log; do
  if [ -n "$only" ] && [ "$arm" != "$baseline" ] && [[ "$arm-" != "$stage-$only-"* ]]; then continue; fi
  log="$here/$log"
  mkdir -p "$(dirname "$log")"
  if [ -f "$log.status" ] && [ "$(cat "$log.status")" = 0 ]; then echo "done before: $arm"; continue; fi
  [ -f "$log" ] && mv "$log" "$log.failed-$(date +%s)"
  rm -f "$log.status"
  echo "$(date +%H:%M:%S) $arm -> $log"
  facts "$(image_of "$arm")" >"$log.facts"
  start "$arm" "$log" </dev/null
  code=$?
  echo "$code" >"$log.status"
  if [ "$code" != 0 ]; then failed=1; echo "  ended with status $code; the log has the reason, the other arms go on" >&2; fi
done <"$order"
exit $failed
