# shellcheck shell=bash
# Stages that compile and test Rust.

export CARGO_INCREMENTAL=0 CARGO_TERM_COLOR=never
# Test programs carry the engine each: without line tables they take less than half the disk. A panic still says where.
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_STRIP=debuginfo
# No C compiler: a build that calls one is told no. The linker has its own name. All commands alike, because blake3 asks
# which compiler there is, and would be built again for another.
cargo() { without_c command cargo "$@"; }
without_c() {
    CC=/bin/false CXX=/bin/false AR=/bin/false "$@"
}
# Builds of tests lint what they compile, all alike, so that nothing is compiled for lints alone, or twice.
linted() { RUSTC_WORKSPACE_WRAPPER=$PWD/.ci/lint "$@"; }
# The C library of a release build for x86-64, stripped: 14.5 MB, of which kernels for every instruction set and format of
# keys and values are 2.7.
C_BYTES_MAX=$((15200 * 1000))
# The same as an application for aarch64 carries it: profile `small`, without grammars, stripped. 6 MB is what an app's author is promised.
SMALL_BYTES_MAX=$((6000 * 1000))

# With the GPU feature: what it adds is tested, and nothing else is built in another way.
cargo_test() { linted cargo test --workspace --features kvik/gpu "$@"; }

compile_tests() { cargo_test --no-run; }

# The README's command. Tests on outside data run where the data stands beside the checkout, and those of stores against an
# S3 that is a process of this machine.
run_tests() {
    if [[ -z ${KVIK_DATA:-} && -d ../shared/data ]]; then
        export KVIK_DATA=$PWD/../shared/data
    fi
    # The suites of Python, which come later, note theirs there too.
    export KVIK_SKIPPED=$PWD/target/skipped.txt
    : >"$KVIK_SKIPPED"
    # The simulator has other seeds than any commit before, and more than a debug build has by itself.
    FIRST=$((2000 * $(commit_number))) SEEDS=2000 with_store cargo_test
    count_skipped Rust -v
}

# Runs a command beside an S3 of its own, because another checkout may be tried at the same time.
with_store() {
    local url
    url=http://127.0.0.1:$(PYTHONPATH=tests python3 -B -c 'import server; print(server.free_port())')
    aside moto exec "$VENV/bin/moto_server" -H 127.0.0.1 -p "${url##*:}"
    curl -sf --retry 60 --retry-delay 1 --retry-connrefused -X PUT "$url/kvik" >/dev/null ||
        { echo "no S3 at $url:" && cat target/ci-moto.log && return 1; }
    AWS_ENDPOINT_URL=$url AWS_ACCESS_KEY_ID=any AWS_SECRET_ACCESS_KEY=any AWS_REGION=us-east-1 "$@"
    kill "${ASIDE[moto]}" || { echo "the S3 ended before its tests:" && cat target/ci-moto.log && return 1; }
    unset "ASIDE[moto]"
}

# The sources for Kotlin, Swift and Python that are checked in are what the generator writes. With every change, those for
# Kotlin and Python hold the sums of their functions to the library's when they load it.
test_bindings() {
    linted cargo test --workspace --features kvik/gpu,kvik-uniffi/generate --test it generated::
}

# Histories with the checks of a debug build, by the program that the tests left.
test_simulator() {
    FIRST=0 SEEDS=10000 cargo_test --test simulator -- --nocapture
}

# Every interleaving of small thread pools; its flag would have all else built again, so the kernels, of which the pool is a
# small part, are compiled as fast as may be.
test_loom() {
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p kvik-kernels --release --test loom_pool \
        --config profile.release.package.kvik-kernels.opt-level=0
}

# Links of comments lead somewhere, also those of private items.
test_documents() {
    RUSTDOC=$PWD/.ci/document KVIK_DOCUMENTS=$PWD/target/doc cargo_test --doc
    $FULL || return 0
    # Programs without a library.
    RUSTDOCFLAGS="-D warnings" cargo doc -p kvik-examples --bins --no-deps --document-private-items
}

# Only the kernels have code of their own for aarch64.
test_aarch64() {
    install_target $AARCH64
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -cpu max -L /usr/aarch64-linux-gnu" \
        KVIK_EMULATED=1 cargo test -p kvik-kernels --lib --target $AARCH64
}

# Another of the foreign systems for each commit.
check_one_target() {
    check_target "${TARGETS[$(($(commit_number) % ${#TARGETS[@]}))]}"
}

check_targets() {
    local target
    for target in "${TARGETS[@]}"; do check_target "$target"; done
}

# Compiles a crate for a system: check_target CRATE@SYSTEM
check_target() {
    install_target "${1#*@}"
    echo "$1"
    cargo check -p "${1%@*}" --target "${1#*@}"
}

# The binary and libraries that are tried from outside. With a change those of the tests, which check for overflows too;
# the release build otherwise: the README's command, and what is packed beside the binary.
build_tried() {
    if $FULL; then
        # In one command, so that all they share is built once.
        cargo build --release -p kvik -p kvik-c -p kvik-uniffi
    else
        # Tests are named beside them, so that all has the features that tests have.
        linted cargo build --workspace --features kvik/gpu --lib --bin kvik --bin cases --test it
    fi
}

# The C API: every function under the address sanitiser, then the example twice, which is warm then.
test_c_api() {
    local out=target/ci-c model=models/tiny/kvik-tiny-q8_0.gguf
    local flags=(-std=c11 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror -pedantic -g -Icrates/kvik-c/include)
    local links=("-L$BUILT" -lkvik_c -lpthread "-Wl,-rpath,$PWD/$BUILT")
    rm -rf "$out" && mkdir -p "$out/api" "$out/answer"
    cc "${flags[@]}" -fsanitize=address,undefined crates/kvik-c/tests/api.c -o "$out/api.bin" "${links[@]}"
    "$out/api.bin" "$model" "$out/api"
    cc "${flags[@]}" crates/kvik-c/examples/answer.c -o "$out/answer.bin" "${links[@]}"
    "$out/answer.bin" "$model" "$out/answer" "Who are you?"
    "$out/answer.bin" "$model" "$out/answer" "Who are you?" 2>&1 | tee "$out/again.txt"
    grep -q '(complete)' "$out/again.txt"
    $FULL || return 0
    # It grows only on purpose.
    strip -o "$out/libkvik_c.so" "$BUILT/libkvik_c.so"
    at_most "$C_BYTES_MAX" "$out/libkvik_c.so"
}

# One forward pass and every kernel under Vulkan's validation layers, which have nothing to say. They print only where nobody
# takes their messages, which a debug build of wgpu does, for a logger that tests do not have: hence WGPU_DEBUG=0. A layer that
# is missing is passed over in silence, so the loader must say that it is there.
test_validation() {
    local log=target/validation.txt
    WGPU_DEBUG=0 VK_LOADER_DEBUG=layer VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation \
        cargo_test --test kernels --test it -- \
        --nocapture device::exact kv:: attention experts 2>&1 | tee "$log" | grep '^test '
    grep -q 'Insert instance layer "VK_LAYER_KHRONOS_validation"' "$log"
    ! grep -E "Validation (Error|Warning)|VUID-" "$log"
}

# The library as an application carries it: how large it is, and every function of it under emulation. As the NDK links,
# with lld, which keeps equal functions once; Rust brings one.
test_aarch64_library() {
    local out=target/ci-aarch64 built=target/$AARCH64/small lld link
    install_target $AARCH64
    lld=$(rustc --print sysroot)/lib/rustlib/$(rustc --print host-tuple)/bin/gcc-ld
    link="-Clink-arg=-fuse-ld=lld -Clink-arg=-B$lld -Clink-arg=-Wl,--icf=all,-z,pack-relative-relocs"
    # shellcheck disable=SC2086
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc cargo rustc --profile small -p kvik-c \
        --no-default-features --lib --crate-type cdylib --target $AARCH64 -- $link
    rm -rf "$out" && mkdir -p "$out/api"
    aarch64-linux-gnu-strip -o "$out/libkvik_c.so" "$built/libkvik_c.so"
    at_most "$SMALL_BYTES_MAX" "$out/libkvik_c.so"
    aarch64-linux-gnu-gcc -std=c11 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror -pedantic -Icrates/kvik-c/include \
        crates/kvik-c/tests/api.c -o "$out/api.bin" -L"$out" -lkvik_c -lpthread
    qemu-aarch64-static -cpu max -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$PWD/$out" \
        "$out/api.bin" models/tiny/kvik-tiny-q8_0.gguf "$out/api"
}
