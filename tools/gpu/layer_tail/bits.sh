#!/bin/bash
# layer_tail: bits of the stages' own kernels, nano against the CPU
chmod +x gpu_tests gpu_tests_knobs; export LD_LIBRARY_PATH=$PWD XDG_CACHE_HOME=/dev/shm/cubins MORAY_TEST_GPU=1
ln -sfn "$REPO" "$BUILT_FROM"  # the folder whose path the binary was built with
show() { grep -E "^\[ +(OK|FAILED|PASSED|SKIPPED) " t.txt; grep -A12 -m3 "Failure" t.txt | cut -c1-240; tail -3 t.txt | cut -c1-300; }
for f in '*GpuForwardOf.JoinedStages*:*GpuForwardOf.ATokensLogits*' 'LayerTail.*' 'GpuNano.*'; do
  echo "=== $f"; timeout 40 ./gpu_tests --gtest_filter="$f" > t.txt 2>&1; echo "rc $?"; show; done
for k in coop pdl; do echo "=== launch $k"; X_LAUNCH=$k timeout 15 ./gpu_tests_knobs --gtest_filter='*JoinedStages*' > t.txt 2>&1; echo "rc $?"; show; done
