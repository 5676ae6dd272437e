#!/bin/sh
# The whole chain at toy size on a CPU, in about a minute: check, train, export, twin, evaluate.
# Usage: train/dryrun.sh PYTHON STREAMS TOKENIZER   (STREAMS holds heldout.xz and train1.xz)
# Mistakes in the code show here; the figures it prints mean nothing.
set -eu
here=$(dirname "$0")
python=${1:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
"$python" "$here/toy_corpus.py" "$2" "$work/streams"
"$python" "$here/check.py"
"$python" "$here/train.py" "$work/run" --toy --streams "$work/streams" --store "$work/store" \
    --tokenizer "$3" --seconds 12 --batch 2 --time 256 --long-time 512 --workers 1 \
    --measure "$work/streams/fixed.txt"
"$python" "$here/evaluate.py" "$work/run/model" "$work/streams/heldout.xz" "$work/eval" \
    --documents 3 --cases 2 --device cpu
"$python" "$here/baseline.py" "$work/streams/heldout.xz" "$work/eval"
"$python" "$here/check_export.py" "$work/run/model"
echo "dry run: the whole chain works"
