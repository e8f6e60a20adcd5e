# shellcheck shell=bash
# Stages of a run: each under a name, with its time; the disk that all take; and the summary.

# Bytes that a whole run may take, and that must be free where it starts.
DISK_BYTES=$((12 * 1000 * 1000 * 1000))
# Outlives a checkout: tools by version, and what has passed with which inputs.
CACHE=${KVIK_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvik-ci}
STARTED=$SECONDS
STAGE=setup
PASSED=()
SKIPPED=""
declare -A ASIDE LANES

# Checks that there is room, and begins to watch how much is taken.
begin() {
    trap summary EXIT
    trap 'exit 143' TERM
    mkdir -p "$CACHE/passed" target
    local free
    free=$(free_bytes)
    if ((free < DISK_BYTES)); then
        echo "$((free / 1000000)) MB are free on the disk of $PWD, and a run takes up to $((DISK_BYTES / 1000000)) MB" >&2
        exit 1
    fi
    FREE_FIRST=$free
    LEAST_FREE=$PWD/target/ci-least-free
    echo "$free" >"$LEAST_FREE"
    watch_disk &
    WATCH=$!
}

# The number of the commit, by which each run tries another part of what takes long. A checkout without its history counts
# one commit each time; there the number is made of the commit's name.
commit_number() {
    if [[ $(git rev-parse --is-shallow-repository) == true ]]; then
        echo "this checkout has no history, and the commit's name stands for its number; git fetch --unshallow gets it" >&2
        echo $((16#$(git rev-parse HEAD | cut -c 1-7)))
    else
        git rev-list --count HEAD
    fi
}

free_bytes() { df --output=avail -B1 . | tail -n 1; }

# Keeps the least that was free.
watch_disk() {
    local free
    while sleep 2; do
        free=$(free_bytes)
        if ((free < $(cat "$LEAST_FREE"))); then echo "$free" >"$LEAST_FREE"; fi
    done
}

# Runs a command under a name, and keeps its time and that of its processors.
stage() {
    STAGE=$1
    local from=$SECONDS busy
    count_ticks && busy=$TICKS
    printf '\n== %s\n' "$STAGE"
    "${@:2}"
    count_ticks
    PASSED+=("$STAGE $((SECONDS - from)) $(((TICKS - busy) / $(getconf CLK_TCK)))")
}

# Sets TICKS to the time of the processors that the ended commands of this shell took, without those of its lanes, which
# count their own.
count_ticks() {
    local fields lane
    read -ra fields <"/proc/$BASHPID/stat"
    TICKS=$((fields[15] + fields[16]))
    for lane in "${!LANES[@]}"; do
        kill -0 "${LANES[$lane]}" 2>/dev/null || TICKS=$((TICKS - $(cat "target/ci-$lane.ticks")))
    done
}

# Begins a command that goes on beside the stages that follow: aside NAME COMMAND...
aside() {
    "${@:2}" >"target/ci-$1.log" 2>&1 &
    ASIDE[$1]=$!
}

# Waits for such commands, and prints of each that failed what it said: await NAME...
await() {
    local name
    for name in "$@"; do
        wait "${ASIDE[$name]}" || { echo "$name failed:" && cat "target/ci-$name.log" && return 1; }
        unset "ASIDE[$name]"
    done
}

# Begins a function of stages beside those that follow: lane NAME FUNCTION. `join NAME` shows what they print, and takes
# their times over.
lane() {
    echo 0 >"target/ci-$1.ticks"
    (
        PASSED=() LANES=()
        "$2"
        printf '%s\n' "${PASSED[@]}" >"target/ci-$1.passed"
        count_ticks
        echo "$TICKS" >"target/ci-$1.ticks"
    ) >"target/ci-$1.log" 2>&1 &
    ASIDE[$1]=$! LANES[$1]=$!
}

join() {
    local passed status=0
    wait "${ASIDE[$1]}" || status=$?
    unset "ASIDE[$1]"
    cat "target/ci-$1.log"
    if ((status)); then
        STAGE=$(sed -n 's/^== //p' "target/ci-$1.log" | tail -n 1)
        return 1
    fi
    mapfile -t passed <"target/ci-$1.passed"
    PASSED+=("${passed[@]}")
}

# Ends a command that goes on beside, with all that it has begun.
end_aside() {
    local child
    for child in $(pgrep -P "$1"); do end_aside "$child"; done
    kill "$1" 2>/dev/null || true
}

# Runs a command unless it has passed with the same bytes in these files: run_if_changed NAME "FILE..." COMMAND...
run_if_changed() {
    local passed
    # shellcheck disable=SC2086
    passed=$CACHE/passed/$1-$(cat $2 | sha256sum | cut -c 1-32)
    if [[ -e $passed ]]; then
        echo "$2: as when it passed last"
        return
    fi
    "${@:3}"
    touch "$passed"
}

# Holds a file to a number of bytes, and says by how much it is larger.
at_most() {
    local bytes
    bytes=$(stat -c %s "$2")
    ((bytes <= $1)) || { echo "$2 has $bytes bytes, $((bytes - $1)) more than it may" >&2 && return 1; }
}

# A test that lacks something notes that in a list, and CI passes. Counts those of a language, and says what they lacked;
# -e takes the tests of Python, whose names begin with a file, and -v all others: count_skipped LANGUAGE -e|-v
count_skipped() {
    local lines number=0
    lines=$(grep "$2" '^[^ ]*\.py\(::[^ ]*\)\?: ' "$KVIK_SKIPPED" || true)
    [[ -z $lines ]] || number=$(wc -l <<<"$lines")
    SKIPPED+="${SKIPPED:+, }$number tests of $1 skipped"
    ((number)) || return 0
    printf '\n%s tests of %s skipped:\n' "$number" "$1"
    sed 's/^[^ ]*: //' <<<"$lines" | sort | uniq -c | sort -rn
}

no_server_left() {
    local exe
    for exe in /proc/[0-9]*/exe; do
        if [[ $(readlink "$exe" 2>/dev/null || true) == "$PWD/$BUILT/kvik"* ]]; then
            echo "a server still runs: ${exe%/exe}"
            return 1
        fi
    done
}

summary() {
    local status=$?
    local total=$((SECONDS - STARTED)) taken=0 least
    printf '\n'
    local aside
    for aside in "${ASIDE[@]}"; do end_aside "$aside"; done
    ((${#PASSED[@]})) && printf '%s\n' "${PASSED[@]}" |
        awk '{ printf "%-20s %5d s, %5d s of processors\n", $1, $2, $3 }'
    if [[ -n ${WATCH:-} ]]; then
        kill "$WATCH" 2>/dev/null || true
        least=$(cat "$LEAST_FREE")
        taken=$(((FREE_FIRST - ${least:-$FREE_FIRST}) / 1000000))
        echo "disk: $taken MB at most, of $((DISK_BYTES / 1000000))"
    fi
    if ((status == 0)); then
        echo "CI passed in $total s${SKIPPED:+, $SKIPPED}"
    else
        echo "CI failed in stage $STAGE after $total s"
    fi
}
