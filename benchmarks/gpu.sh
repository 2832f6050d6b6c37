#!/usr/bin/env bash
# A quarter of an hour on one GPU, what matters first: both programs, agreement with the CPU, images
# per second and what may raise them, then accuracy for the rest of the time.
#
#   benchmarks/gpu.sh DATA_DIR OUT [SECONDS]       # 840 by default
#   DEVICE=cpu SHARE=0.01 benchmarks/gpu.sh ...    # a hundredth of the steps, to try the script
#
# OUT/log.txt has each command, what it printed and its exit code: 124 if it was ended in time, as
# by Ctrl-C. The other folders in OUT are runs, which the same commands resume on any machine.
set -uo pipefail
cd "$(dirname "$0")/.."
data=$1 out=$2 end=$((SECONDS + ${3:-840}))
device=${DEVICE:-gpu}
mkdir -p "$out"

run() {  # run SECONDS COMMAND...: for as long, but not beyond the end.
  local left=$((end - SECONDS)) limit=$1
  shift
  [ "$limit" -lt "$left" ] || limit=$left
  [ "$limit" -gt 5 ] || return
  echo "\$ $*"
  timeout --signal=INT --kill-after=60 "$limit" env PYTHONUNBUFFERED=1 "$@"
  echo "exit code $?, after $SECONDS seconds"
}
steps() { awk "BEGIN { n = int($1 * ${SHARE:-1}); print (n > 2 ? n : 2) }"; }

programs() {
  local common=(--data_dir="$data" --log_frequency=100 --max_steps="$(steps 300)")
  run 60 python cifar10_train.py "${common[@]}" --train_dir="$out/tutorial"
  run 60 python cifar10_multi_gpu_train.py "${common[@]}" --num_gpus=2 --train_dir="$out/towers"
  run 60 python cifar10_eval.py --run_once --data_dir="$data" --checkpoint_dir="$out/tutorial" \
    --eval_dir="$out/eval"
  run 60 python cifar10_predict.py --checkpoint_dir="$out/tutorial" docs
  for net in tutorial resnet23 airbench94; do
    run 60 python classification.py -c "$device" -n $net -m "$out/net_$net" --validate_every=0 \
      "${common[@]}"
    run 60 python classification.py -c "$device" --evaluate -m "$out/net_$net" --data_dir="$data"
  done
}

speed() {
  local bench=(python -m benchmarks --data_dir="$data" --turns "$(steps 10)")
  for net in tutorial resnet23 airbench94; do
    run 60 "${bench[@]}" --net $net --batch_size 64 --only agreement
  done
  run 120 "${bench[@]}" --batches 128 1024 --only speed
  # The last is the first again: the machine's drift.
  for setting in A=1 TF_XLA_FLAGS=--tf_xla_auto_jit=2 TF_GPU_THREAD_MODE=gpu_private A=1; do
    run 60 $setting "${bench[@]}" --batches 128 --only speed
  done
  run 90 "${bench[@]}" --only input train --turns 1 --steps "$(steps 500)"
}

accuracy() {
  for seed in 1 2 3; do
    run 100 python classification.py -c "$device" -n airbench94 --use_bf16 --seed $seed \
      -m "$out/airbench94_$seed" --data_dir="$data" --epochs "$(steps 14)"
  done
  run 900 python classification.py -c "$device" -m "$out/resnet23_300" --data_dir="$data" \
    --validate_every 10 --epochs "$(steps 300)"
}

{
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  programs
  speed
  accuracy
} 2>&1 | tee "$out/log.txt"
! grep '^exit code' "$out/log.txt" | grep -Ev 'code (0|124),'
