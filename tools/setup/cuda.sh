# Sourced by ./quickstart and ./test: puts NVIDIA's wheels that Moray uses into a folder of the build.
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
