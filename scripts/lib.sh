# SPDX-License-Identifier: Apache-2.0
# lib.sh - what scripts/serve and scripts/test share: find or install what is missing, build.
# Sourced, not run. Idempotent: each step looks before it acts.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${WHET_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/whet}
build=${WHET_BUILD:-$root/build}

# What the program needs, and what only the tests need. `:` lists alternatives, first one that the
# distribution has is taken (llhttp is a library on newer systems, generated C on Debian 12, and on
# older ones not there: fetch_llhttp). `?`: only where the distribution has it.
packages_serve="gcc libc6-dev pkg-config meson ninja-build python3 python3-venv ca-certificates
    libuv1-dev libllhttp-dev:node-llhttp? libcjson-dev libcurl4-openssl-dev libpcre2-dev
    libsqlite3-dev libpq-dev libopenblas-dev libinih-dev libutf8proc-dev curl"
packages_test="postgresql clang lld clang-format-14:clang-format libclang-rt-14-dev:libclang-rt-dev? libcmocka-dev prometheus chromium? libfaketime haproxy"
packages_arm="gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
packages_screenshots="chromium fonts-inter fonts-jetbrains-mono pngquant"

say() { printf '\033[1mwhet:\033[0m %s\n' "$*" >&2; }
die() { printf 'whet: %s\n' "$*" >&2; exit 1; }

# What the script $1 says of itself at its beginning, below the licence.
header() { sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$1"; }

have_package() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

# Prints the packages of "$@" (with alternatives) that are not installed and could be.
missing_packages() {
    local spec alternative found
    for spec in "$@"; do
        found=
        for alternative in ${spec//[:?]/ }; do
            if have_package "$alternative"; then found=1; fi
        done
        [ -n "$found" ] || { [ "$spec" != "${spec%\?}" ] && ! choose_package "$spec" >/dev/null; } ||
            echo "${spec%\?}"
    done
}

# Picks the first alternative that apt knows; the first one, and fails, if it knows none.
choose_package() {
    local alternative
    for alternative in ${1//[:?]/ }; do
        if [ -n "$(apt-cache madison "$alternative" 2>/dev/null)" ]; then
            echo "$alternative"
            return
        fi
    done
    echo "${1%%[:?]*}"
    return 1
}

ensure_packages() {
    command -v dpkg-query >/dev/null && command -v apt-get >/dev/null || {
        say "this is no Debian-like system; please see to these yourself: $*"
        ensure_meson
        return
    }
    local missing as_root= chosen=() spec
    missing=$(missing_packages "$@")
    [ -z "$missing" ] || install_packages "$@"
    ensure_meson
}

# ensure_packages, where $missing is not empty.
install_packages() {
    if [ "$(id -u)" -ne 0 ]; then
        if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
            as_root=sudo
        else
            die "these packages are missing, and installing them needs root:
  $(echo $missing | tr ':' '|')
run this again as root, or: apt-get install $(for spec in $missing; do printf '%s ' "${spec##*:}"; done)"
        fi
    fi
    say "installing $(echo $missing | wc -w) packages (apt)"
    $as_root apt-get update -qq || die "apt-get update failed: is the network there?"
    missing=$(missing_packages "$@") # with those that apt did not know of before
    for spec in $missing; do chosen+=("$(choose_package "$spec")"); done
    mkdir -p "$cache" # not /tmp, where anybody could lay a link of that name in root's way
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends \
        "${chosen[@]}" >"$cache/apt.log" 2>&1 ||
        { tail -n 20 "$cache/apt.log" >&2; die "apt-get install failed"; }
}

# A private Python environment for what is not a system package; $1 names it, the rest is installed.
ensure_python() {
    local venv=$cache/$1 wanted
    shift
    wanted="$*"
    if [ "$(cat "$venv/.whet-packages" 2>/dev/null)" != "$wanted" ]; then
        say "making a Python environment for: $wanted"
        mkdir -p "$cache"
        rm -rf "$venv"
        python3 -m venv "$venv" || die "python3 -m venv failed"
        "$venv/bin/pip" install -q --disable-pip-version-check "$@" ||
            die "pip could not install $wanted"
        echo "$wanted" >"$venv/.whet-packages"
    fi
    echo "$venv"
}

# meson.build needs 1.0, and long-lived distributions have older ones (Ubuntu 22.04: 0.61).
ensure_meson() {
    local version venv
    version=$(meson --version 2>/dev/null) || return 0
    [ "${version%%.*}" -lt 1 ] || return 0
    venv=$(ensure_python meson-env "meson==1.*")
    mkdir -p "$cache/meson-bin" # a folder without that environment's python3
    ln -sf "$venv/bin/meson" "$cache/meson-bin/meson"
    PATH=$cache/meson-bin:$PATH
}

# llhttp's generated C where the system has neither that nor the library: out of the source package
# of httptools on PyPI, which is made of it. Prints the folder.
fetch_llhttp() {
    local package=httptools version=0.7.1 target=$cache/llhttp-9.3.0 work
    local sum=abd72556974f8e7c74a259655924a717a2365b236c882c3f6f8a45fe94703ac9
    if [ ! -d "$target" ]; then
        say "fetching llhttp 9.3.0, which is no package here (from the PyPI package $package)"
        mkdir -p "$cache"
        work=$(mktemp -d "$cache/.llhttp-XXXXXX")
        python3 -m venv "$work/venv" || die "python3 -m venv failed"
        "$work/venv/bin/pip" download -q --disable-pip-version-check --no-deps --no-binary :all: \
            -d "$work" "$package==$version" >&2 || die "$package $version could not be downloaded"
        echo "$sum  $work/$package-$version.tar.gz" | sha256sum --quiet -c - >&2 ||
            die "$package-$version.tar.gz has the wrong checksum: not using it"
        tar -C "$work" -xzf "$work/$package-$version.tar.gz" || die "$package cannot be unpacked"
        mv -T "$work/$package-$version/vendor/llhttp" "$target" 2>/dev/null || [ -d "$target" ] ||
            die "no llhttp in $package"
        rm -rf "$work"
    fi
    echo "$target"
}

# The option that meson needs to find llhttp, if any.
llhttp_option() {
    pkg-config --exists libllhttp 2>/dev/null || [ -d /usr/share/llhttp ] ||
        [ -f /usr/include/llhttp.h ] || [ -f /usr/local/include/llhttp.h ] ||
        echo "-Dllhttp=$(fetch_llhttp)"
}

# What tests need of Python, in an environment of this name.
python_test="test-env pytest==9.* pytest-xdist==3.* requests==2.* openai==3.*"

# The CUDA version that the NVIDIA driver of this machine can run ("13"), or nothing without one.
# $WHET_DRIVER says what to believe instead: a version, or "none".
driver_cuda() {
    local version=${WHET_DRIVER:-}
    if [ -z "$version" ]; then
        ldconfig -p 2>/dev/null | grep -q 'libcuda[.]so[.]1' || return 0
        version=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | head -n 1)
        version=${version:-12} # a driver without nvidia-smi: the oldest that will do
    fi
    [ "$version" = none ] || echo "${version%%.*}"
}

# With a driver, sees to a toolkit (headers, NVRTC, cuBLASLt): the system's, or else the PyPI wheels
# for this driver in a private environment. Sets cuda_options for meson; WHET_CUDA_ENV is exported
# when the wheels are used. $WHET_DRY_RUN: only says what would be done.
ensure_cuda() {
    local driver
    driver=$(driver_cuda)
    cuda_options=-Dcuda=auto
    [ -n "$driver" ] || return 0
    if [ "$driver" -lt 12 ]; then
        say "the NVIDIA driver runs CUDA $driver; whet needs 12 or newer: serving from the CPU"
        return 0
    fi
    cuda_options=-Dcuda=enabled
    local found
    if found=$("$root/scripts/find-cuda" 2>/dev/null); then
        say "NVIDIA driver for CUDA $driver; toolkit: $(echo "$found" | sed -n 's/^nvrtc=//p')"
        return 0
    fi
    say "NVIDIA driver for CUDA $driver and no toolkit"
    fetch_toolkit "$driver"
}

# The toolkit's PyPI wheels for CUDA $1, in an environment that WHET_CUDA_ENV names then.
fetch_toolkit() {
    local wheels=(nvidia-cuda-{runtime,crt,cccl,nvrtc} nvidia-cublas)
    # Before 13 the headers in crt/ came with the compiler, and names had a suffix.
    [ "$1" -ge 13 ] || wheels=(nvidia-cuda-{runtime,nvcc,cccl,nvrtc}-cu12 nvidia-cublas-cu12)
    [ -f "$cache/cuda$1/.whet-packages" ] ||
        say "fetching the CUDA toolkit: ${wheels[*]} (about 0.6 GB, once)"
    [ -z "${WHET_DRY_RUN:-}" ] || return 0
    WHET_CUDA_ENV=$(ensure_python "cuda$1" "${wheels[@]}")
    export WHET_CUDA_ENV
    "$root/scripts/find-cuda" >/dev/null || die "the CUDA wheels do not hold what a build needs"
}

# For tests: NVRTC compiles kernels for a GPU without one, so a toolkit is all they need.
ensure_toolkit() {
    "$root/scripts/find-cuda" >/dev/null 2>&1 || fetch_toolkit 13
}

# build_in DIR [meson options]: configures once, then lets ninja decide what is stale; $build_targets
# if not everything is wanted, $build_jobs compilers at once. Who comes second to a folder waits.
# With WHET_WERROR=1, as CI has it, a warning is an error; elsewhere a compiler that did not exist
# when this was written may say what it likes.
build_in() {
    local dir=$1 log=$1/.whet-log again= lock
    shift
    mkdir -p "$dir"
    exec {lock}>"$dir/.whet-lock"
    flock "$lock"
    if [ -f "$dir/build.ninja" ] && [ "${cuda_options:-}" = -Dcuda=enabled ] &&
        [ ! -f "$dir/libwhet-cuda.so" ]; then
        again=--reconfigure # it was configured before there was a driver or a toolkit
    fi
    if [ ! -f "$dir/build.ninja" ] || [ -n "$again" ]; then
        set -- "$@" $(llhttp_option) ${WHET_WERROR:+-Dwerror=true}
        meson setup $again "$dir" "$root" "$@" >"$log" 2>&1 {lock}>&- ||
            { tail -n 30 "$log" >&2; die "meson setup failed"; }
    fi
    ninja -C "$dir" ${build_jobs:+-j "$build_jobs"} ${build_targets:-} >"$log" 2>&1 {lock}>&- ||
        { tail -n 60 "$log" >&2; die "the build failed"; }
    exec {lock}>&-
}
