# The tables of what `card` has written, as Markdown.

# The value of a key of the line, without quotes; empty if there is none.
function value(key,    rest, end) {
    if (!match($0, "\"" key "\": ?")) return ""
    rest = substr($0, RSTART + RLENGTH)
    if (substr(rest, 1, 1) == "\"") {
        rest = substr(rest, 2)
        end = index(rest, "\"")
    } else {
        match(rest, /[,}\]]/)
        end = RSTART
    }
    return substr(rest, 1, end - 1)
}

function number(text, digits) { return text == "" ? "-" : sprintf("%." digits "f", text) }
function share(part, whole) { return whole > 0 && part != "" ? sprintf("%.1f%%", 100 * part / whole) : "-" }
function yes(text) { return text == "true" ? "same" : "OTHER" }

# Rows of a section are printed in the order in which they came.
function add(table, line) { lines[table, ++count[table]] = line }
function show(table, title, head, rule,    i) {
    if (!count[table]) return
    printf "\n%s\n\n%s\n%s\n", title, head, rule
    for (i = 1; i <= count[table]; i++) print lines[table, i]
}

# Multiplications of one token in the matrices of a shape, without the output matrix.
function products(what) {
    if (what ~ /qwen3-0\.6b/) return 440401920
    if (what ~ /qwen3-4b/) return 3633315840
    return 0
}

function test_name(prompt, generate, depth, sequences,    name) {
    name = prompt > 0 ? "prefill " prompt : "decode " generate
    if (sequences > 1) name = name " x" sequences
    return depth > 0 ? name " at " depth : name
}

{ section = value("section"); what = value("what") }

what == "end" {
    add("ends", "| " section " | " value("seconds") " | " (value("failed") == "" ? "ended" : value("failed")) " |")
    next
}

section == "devices" {
    name = value("name")
    if (name == "") name = value("isa") ", " value("threads") " threads"
    add("devices", "| " value("device") " | " name " | " (value("kind") == "" ? "-" : value("kind")) " | " \
        (value("driver") == "" ? "-" : value("driver")) " | " (value("subgroup_max") == "" ? "-" : value("subgroup_min") " to " value("subgroup_max")) \
        " | " (value("timestamps") == "" ? "-" : value("timestamps")) " |")
}

section == "check" {
    checks++
    add("check", "| " what " | " value("equal") " of " value("prompts") " | " value("ties") " | " yes(value("chunks_equal")) " | " \
        yes(value("batched_equal")) " | " yes(value("cached_equal")) " | " yes(value("recovered_equal")) " |")
}

section == "speed" && value("absent") == "" {
    split(what, part, " ")
    sequences = value("n_sequences")
    if (sequences == "") sequences = 1
    test = test_name(value("n_prompt"), value("n_gen"), value("n_depth"), sequences)
    key = part[1] " | " test
    if (!(key in seen)) { seen[key] = 1; order[++tests] = key }
    if (part[2] == "kvik") {
        kvik[key] = value("avg_ts"); spread[key] = value("stddev_ts")
        seconds = value("avg_ns") / 1e9
        if (value("n_steps") > 0 && value("n_gen") > 0) {
            bytes = value("step_weight_bytes_least") + value("step_kv_bytes_least")
            gbps[key] = bytes * value("n_gen") / seconds / 1e9
        }
        if (value("n_prompt") > 0 && products(what)) tflops[key] = 2 * products(what) * value("avg_ts") / 1e12
    } else peer[key] = value("avg_ts")
}
section == "speed" && value("absent") != "" { note[value("absent")] = 1 }

section == "copies" {
    key = test_name(0, value("n_gen"), value("n_depth"), 1)
    if (!(key in copied_seen)) { copied_seen[key] = 1; copied_order[++copied_tests] = key }
    resident = what ~ /on$/ ? "on" : "off"
    # The better of the rounds.
    if (value("avg_ts") + 0 > copied[key, resident] + 0) copied[key, resident] = value("avg_ts")
    if (resident == "off") { moved[key] = value("kv_bytes_moved"); formula[key] = value("kv_bytes_formula") }
}

section == "first_token" {
    tier = value("prefix") == "before" ? what : value("prefix")
    sub(/^below: /, "", tier)
    if (tier == "new") tier = "computed"
    if (tier == "again") tier = "device"
    # Both servers compute and find on the device; the first of them is shown.
    if (!(tier in first)) {
        first[tier] = value("first_token_ms")
        found[tier] = "device " value("ram") ", host " (value("host") == "" ? 0 : value("host")) ", disk " value("disk")
        first_order[++firsts] = tier
    }
}

section == "step" {
    add("steps", "| " what " | " number(value("step_submissions"), 1) " | " number(value("step_kernels"), 1) " | " \
        number(value("step_groups") / value("step_kernels"), 0) " | " number(value("step_preparing_ns") / 1e6, 2) " | " \
        number(value("step_waiting_ns") / 1e6, 2) " | " number(value("step_weight_bytes") / value("step_weight_bytes_least"), 2) " | " \
        (value("step_kv_bytes_least") > 0 ? number(value("step_kv_bytes") / value("step_kv_bytes_least"), 2) : "-") " |")
    if (match($0, /"kernels":\[/)) {
        pieces = split(substr($0, RSTART), kernels, "{")
        total = 0
        for (i = 2; i <= pieces; i++) { $0 = "{" kernels[i]; total += value("ns") }
        for (i = 2; i <= pieces && i < 9; i++) {
            $0 = "{" kernels[i]
            add("kernels", "| " what " | " value("kernel") " | " value("runs") " | " number(value("groups") / value("runs"), 0) " | " \
                number(value("ns") / value("runs") / 1e3, 1) " | " share(value("ns"), total) " |")
        }
    }
}

END {
    show("devices", "Devices", "| device | name | kind | driver | subgroups | time stamps |", "| --- | --- | --- | --- | --- | --- |")
    show("check", "Beside the processor and itself", \
        "| model | answers as the processor's | differ between equals | in chunks | in a batch | cached | after a loss |", \
        "| --- | --- | ---: | --- | --- | --- | --- |")
    for (i = 1; i <= tests; i++) {
        key = order[i]
        add("speed", "| " key " | " number(kvik[key], 1) " | " number(spread[key], 1) " | " number(peer[key], 1) " | " \
            (peer[key] > 0 ? number(kvik[key] / peer[key], 2) : "-") " | " number(gbps[key], 1) " | " share(gbps[key], peak_gbps) " | " \
            number(tflops[key], 2) " | " share(tflops[key], peak_tflops) " |")
    }
    show("speed", "Speed", "| model | test | kvik, tok/s | +- | llama.cpp, tok/s | ratio | GB/s | of memory | TFLOPS | of peak |", \
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for (reason in note) printf "\nNot measured: %s.\n", reason
    for (i = 1; i <= copied_tests; i++) {
        key = copied_order[i]
        add("copies", "| " key " | " number(copied[key, "on"], 1) " | " number(copied[key, "off"], 1) " | " moved[key] " | " formula[key] " |")
    }
    show("copies", "Keys and values that stay, and copied at every step", \
        "| test | stay, tok/s | copied, tok/s | bytes copied | by the formula |", "| --- | ---: | ---: | ---: | ---: |")
    for (i = 1; i <= firsts; i++) {
        tier = first_order[i]
        add("first", "| " tier " | " number(first[tier], 1) " | " share(first[tier], first["computed"]) " | " found[tier] " |")
    }
    show("first", "The first token of a long prefix", "| prefix found | first token, ms | of computing | tokens found |", "| --- | ---: | ---: | --- |")
    show("steps", "A step", "| step | submissions | kernels | work groups of one | prepared, ms | waited, ms | weights read | keys and values read |", \
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    show("kernels", "Kernels by the device's clock", "| step | kernel | runs | work groups | us | of the kernels |", \
        "| --- | --- | ---: | ---: | ---: | ---: |")
    show("ends", "Sections", "| section | s | |", "| --- | ---: | --- |")
}
