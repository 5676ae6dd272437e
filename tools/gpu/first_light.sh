#!/usr/bin/env bash
# Runs what shows whether Moray works on a machine with a GPU, from binaries built elsewhere.
#   tools/gpu/first_light.sh BUILD_FOLDER [tests|run|bench|full]...
# BUILD_FOLDER holds moray and tests/gpu_tests (a build with -DMORAY_STATIC=ON). Without a list all
# parts are done: tests, the shipped model's text, its speed, and the speed of a model of 35 billion
# random parameters. Each part is given a time limit, and a failed one does not keep the others from
# being done; the exit code is the number of parts that failed.
set -uo pipefail
build=$(realpath "${1:?folder of the binaries}")
shift
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 99
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(tests run bench full)
moray=$build/moray
nano=models/moray-nano
large=tests/configs/qwen3.6-35b-a3b
failed=0

part() {  # part NAME SECONDS COMMAND...
  local name=$1 limit=$2
  shift 2
  echo "== $name: $*"
  local start=$SECONDS
  timeout "$limit" "$@"
  local code=$?
  echo "== $name: exit $code after $((SECONDS - start)) s"
  [ $code -eq 0 ] || failed=$((failed + 1))
}

for wanted in "${parts[@]}"; do
  case $wanted in
    tests) MORAY_TEST_GPU=1 part tests 120 "$build/tests/gpu_tests" --gtest_brief=1 \
      "--gtest_filter=${MORAY_FILTER:-*}" ;;
    run) part run 60 "$moray" run $nano --device cuda -p 'def fibonacci(n):' --max-tokens 100 ;;
    bench) part bench 60 "$moray" bench $nano --device cuda -p 512,4096 -n 128 -d 0,4096 -r 3 ;;
    full)
      part stages 60 "$moray" bench $large --weights random --device cuda --ctx 40000 --stages -d 4096
      part full 90 "$moray" bench $large --weights random --device cuda --ctx 140000 \
        -p 512,2048,8192 -n 128 -d 0,4096 -r 3
      ;;
    *) echo "error: part: found '$wanted', expected tests, run, bench or full" >&2; exit 98 ;;
  esac
done
exit $failed
