#!/bin/bash
# quiet
# decode speed of the 35B shape: stages apart (main had 538 @0, 521 @4096), joined, and variants
chmod +x moray; export LD_LIBRARY_PATH=$PWD XDG_CACHE_HOME=/dev/shm/cubins; m=$PWD/moray; cd $REPO
# compiles the kernels, nothing else
timeout 70 $m bench tests/configs/qwen3.6-35b-a3b --weights random:1 --device cuda --ctx 8192 -p 0 -n 1 -d 0 -r 1 --quiet > /dev/null 2>&1; echo rc $?
for v in X_SINGLE=1 X_HINTS=3 X_HINTS=0 X_LAUNCH=coop X_LAUNCH=pdl X_HINTS=6; do
  echo "=== $v"; env $v timeout 18 $m bench tests/configs/qwen3.6-35b-a3b --weights random:1 --device cuda --ctx 8192 -p 0 -n 128 -d 0,4096 -r 3 -o jsonl --output-file $OUT/bench-$v.jsonl --quiet 2>&1 | tail -4; cut -c1-900 $OUT/bench-$v.jsonl; done
