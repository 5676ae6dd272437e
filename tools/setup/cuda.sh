# Sourced by ./quickstart and ./test, after packages.sh: puts NVIDIA's wheels that Moray uses into a
# folder of the build.
#
# put_cuda_wheel FOLDER LIST installs the wheel that tools/setup/LIST.txt names with its version and
# hash as FOLDER/LIST/nvidia/..., with pip from an environment of its own. It does nothing when that
# is done, and returns 1 with one line when the network or Python is missing.

put_cuda_wheel() {
  local folder=$1 list=$2 python log
  # What was installed is kept beside it: a new version in the list replaces the old one.
  ! cmp --silent "tools/setup/$list.txt" "$folder/$list.txt" || return 0
  python=$folder/python
  mkdir -p "$folder"
  log=$folder/$list.log
  if [ ! -x "$python/bin/pip" ]; then
    python3 -m venv "$python" >"$log" 2>&1 || {
      rm -rf "$python"
      echo "note: $list: 'python3 -m venv' failed ($log)" >&2
      return 1
    }
  fi
  "$python/bin/pip" install --disable-pip-version-check --no-input --no-deps --require-hashes \
    --only-binary :all: --timeout 10 --retries 1 --target "$folder/$list" --upgrade \
    -r "tools/setup/$list.txt" >"$log" 2>&1 || {
    echo "note: $list: pip could not fetch it: $(tail -n 1 "$log")" >&2
    return 1
  }
  cp "tools/setup/$list.txt" "$folder/$list.txt"
}

# The major version of CUDA that the installed driver serves ("13"), or nothing without a driver.
driver_cuda_major() {
  python3 - 2>/dev/null <<'END'
import ctypes
for name in ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"):
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        continue
    version = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)) == 0:
        print(version.value // 1000)
    break
END
}

# Whether an NVRTC of major version $1 lies where Moray looks for one (src/gpu/compiler_places.cpp),
# the build folder aside.
has_nvrtc() {
  local folder
  [ -z "${MORAY_NVRTC-}" ] || return 0
  ! ldconfig -p 2>/dev/null | grep -F "libnvrtc.so.$1 " >/dev/null || return 0
  for folder in "${CUDA_HOME:-${CUDA_PATH-}}"/lib64 /usr/local/cuda*/lib64 \
    "${VIRTUAL_ENV:-${CONDA_PREFIX-}}"/lib/python3*/site-packages/nvidia/*/lib \
    "${HOME-}"/.local/lib/python3*/site-packages/nvidia/*/lib \
    /usr/local/lib/python3*/*-packages/nvidia/*/lib; do
    [ ! -e "$folder/libnvrtc.so.$1" ] || return 0
  done
  return 1
}

# With a driver and no NVRTC for it: puts the wheel into FOLDER. Never fails: without NVRTC Moray runs
# on the CPU and says why.
provide_nvrtc() {
  local folder=$1 major
  major=$(driver_cuda_major)
  [ -n "$major" ] || return 0
  # A newer driver takes the code of an older compiler.
  [ "$major" -le 13 ] || major=13
  if [ -f "tools/setup/nvrtc-$major.txt" ] && ! has_nvrtc "$major"; then
    require_packages "to fetch NVIDIA's run-time compiler" python3-venv &&
      put_cuda_wheel "$folder" "nvrtc-$major" || true
  fi
}
