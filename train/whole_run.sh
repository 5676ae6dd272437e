#!/bin/sh
# Training, export and every figure of the card in one go on one machine with GPUs.
# Usage: train/whole_run.sh PYTHON STREAMS TOKENIZER OUT UNTIL MORAY [STORE]
# UNTIL is the epoch second at which training ends; figures take some two minutes more. MORAY is the
# engine's binary, which writes the completions on the CPU. A file OUT/DONE appears at the end.
set -eu
python=$1 streams=$2 tokenizer=$3 out=$4 until=$5 moray=$6 store=${7:-/dev/shm/moray-corpus}
here=$(dirname "$0")
gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
mkdir -p "$out"
"$python" -m torch.distributed.run --nproc_per_node="$gpus" "$here/train.py" "$out" \
    --streams "$streams" --store "$store" --tokenizer "$tokenizer" --until "$until" --workers 8 \
    --snapshot-seconds 200 --measure "$here/../tests/data/held_out_code.txt"
"$python" "$here/baseline.py" "$streams/heldout.xz" "$out" &
"$python" "$here/evaluate.py" "$out/model" "$streams/heldout.xz" "$out" --moray "$moray"
wait
touch "$out/DONE"
