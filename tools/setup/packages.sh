# Sourced by ./quickstart and ./test: makes sure that Debian packages are installed.
#
# require_packages "why" package... installs those that are missing, after saying which and why, with
# apt-get as root or through sudo; it does nothing, and asks for nothing, when none is missing.

missing_packages() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      printf '%s ' "$package"
  done
}

require_packages() {
  local why=$1 missing as_root=
  shift
  if ! command -v dpkg-query >/dev/null; then
    echo "note: this is not a Debian system; expecting these to be installed already: $*" >&2
    return 0
  fi
  missing=$(missing_packages "$@")
  missing=${missing% }
  [ -n "$missing" ] || return 0
  echo "Installing with apt-get, $why: $missing" >&2
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "error: packages: found neither root nor sudo, expected one of them to run" \
        "'apt-get install $missing'" >&2
      return 1
    fi
    as_root=sudo
  fi
  local log
  log=$(mktemp)
  # One attempt from the lists at hand, then one from fresh lists.
  # shellcheck disable=SC2086
  if ! $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    $missing >"$log" 2>&1; then
    { $as_root apt-get update &&
      $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        $missing; } >"$log" 2>&1 || {
      echo "error: packages: apt-get could not install them; its last lines:" >&2
      tail -n 5 "$log" >&2
      rm -f "$log"
      return 1
    }
  fi
  rm -f "$log"
}

# What building the engine takes.
build_packages="g++ cmake ninja-build libsimdjson-dev nlohmann-json3-dev libcli11-dev
  libspdlog-dev libfmt-dev libutf8proc-dev libxxhash-dev"
# What the tests take besides: the last for NVIDIA's compiler and disassembler (cuda.sh).
test_packages="libgtest-dev libbenchmark-dev python3-venv"
# What ./test --long takes besides: a compiler with libFuzzer.
fuzz_packages="clang libclang-rt-14-dev"
