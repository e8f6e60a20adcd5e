/* Does what cases.txt says, and writes what came of it: cases LIST MODEL.gguf EMPTY_DIRECTORY
 *
 * The runners of other languages write the same, to the byte. */
#include <fcntl.h>
#include <unistd.h>

#include "cases.h"
#include "kvik.h"

typedef struct {
    const char *file, *directory;
    KvikModel *model;
} Runner;

/* What came of a call: where it is not OK, nothing has been written yet. */
typedef KvikStatus Operation(Runner *runner, const Line *line);

static Text prompt(const Line *line) {
    const char *once = get(line, "prompt");
    uint64_t times = find(line, "times") == NULL ? 1 : number(line, "times");
    Text text = {0};
    append(&text, "", 0);
    while (times-- > 0)
        append(&text, once, strlen(once));
    return text;
}

/* At most ARGUMENTS_MAX of them. */
static size_t messages(const Line *line, KvikMessage *to) {
    static const char *const roles[] = {
        [KVIK_ROLE_SYSTEM] = "system", [KVIK_ROLE_USER] = "user", [KVIK_ROLE_ASSISTANT] = "assistant"};
    size_t count = 0;
    for (size_t i = 0; i < line->count; i++)
        for (uint32_t role = 0; role < 3; role++)
            if (strcmp(line->arguments[i].name, roles[role]) == 0)
                to[count++] = (KvikMessage){.role = role, .content = line->arguments[i].value};
    return count;
}

/* --- operations ----------------------------------------------------------------------------------------------- */

static KvikStatus ok(KvikStatus status, const Line *line) {
    if (status == KVIK_STATUS_OK)
        printf("%s ok=yes", line->operation);
    return status;
}

static KvikStatus open_bytes(const char *path, const KvikOptions *options, KvikModel **model) {
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail("a file cannot be opened", path);
    Text bytes = {0};
    char some[65536];
    for (size_t count; (count = fread(some, 1, sizeof some, file)) > 0;)
        append(&bytes, some, count);
    fclose(file);
    KvikStatus status = kvik_open_bytes((const uint8_t *)bytes.bytes, bytes.count, options, model);
    free(bytes.bytes);
    return status;
}

static KvikStatus open_part(const char *path, const KvikOptions *options, KvikModel **model) {
    int file = open(path, O_RDONLY);
    KvikStatus status = kvik_open_part(file, 0, 0, options, model);
    close(file);
    return status;
}

/* A path as it is, a name in the runner's directory; null is nothing. */
static Text directory(const Runner *runner, const char *name) {
    Text path = {0};
    if (name != NULL && name[0] != '/') {
        append(&path, runner->directory, strlen(runner->directory));
        append(&path, "/", 1);
    }
    if (name != NULL)
        append(&path, name, strlen(name));
    return path;
}

static KvikStatus open_model(Runner *runner, const Line *line) {
    only(line, " as file disk conversations kv_bytes context_tokens threads parallel ");
    KvikOptions options = {.kv_bytes = number(line, "kv_bytes"),
                           .context_tokens = number(line, "context_tokens"),
                           .threads = (uint32_t)number(line, "threads"),
                           .parallel = (uint32_t)number(line, "parallel")};
    const char *as = get(line, "as"), *path = find(line, "file");
    Text disk = directory(runner, find(line, "disk")), talks = directory(runner, find(line, "conversations"));
    options.disk_dir = disk.bytes;
    options.conversations_dir = talks.bytes;
    path = path == NULL ? runner->file : path;
    KvikStatus status = strcmp(as, "bytes") == 0  ? open_bytes(path, &options, &runner->model)
                        : strcmp(as, "part") == 0 ? open_part(path, &options, &runner->model)
                                                  : kvik_open_file(path, &options, &runner->model);
    free(disk.bytes);
    free(talks.bytes);
    return ok(status, line);
}

static KvikStatus close_model(Runner *runner, const Line *line) {
    KvikModel *model = runner->model;
    runner->model = NULL;
    return ok(kvik_close(model), line);
}

/* What an answer has said so far. */
typedef struct {
    Text text, reasoning;
    Text calls; /* JSON, one object after the other */
    uint64_t pieces, cancel_after;
} Said;

static bool collect(KvikPieceKind kind, const char *piece, size_t bytes, void *context) {
    Said *said = context;
    Text *to[] = {[KVIK_PIECE_KIND_TEXT] = &said->text,
                  [KVIK_PIECE_KIND_REASONING] = &said->reasoning,
                  [KVIK_PIECE_KIND_CALL] = &said->calls};
    append(to[kind], piece, bytes);
    return ++said->pieces != said->cancel_after;
}

static void write_said(const Said *said) {
    static const char *const members[] = {"name", "arguments"};
    quote("text", &said->text);
    if (said->reasoning.count > 0)
        quote("reasoning", &said->reasoning);
    Text call[2] = {0};
    for (const char *at = said->calls.bytes; at != NULL && (at = read_json_object(at, 2, members, call)) != NULL;) {
        quote("call", &call[0]);
        quote("arguments", &call[1]);
        call[0].count = call[1].count = 0;
    }
    free(call[0].bytes);
    free(call[1].bytes);
}

static void write_answer(const Line *line, const Said *said, const KvikReport *report) {
    static const char *const ends[] = {[KVIK_FINISH_END] = "end",
                                       [KVIK_FINISH_STOP] = "stop",
                                       [KVIK_FINISH_LENGTH] = "length",
                                       [KVIK_FINISH_CANCELLED] = "cancelled"};
    const char *counts = find(line, "counts");
    fputs(line->operation, stdout);
    if (said->cancel_after == 0)
        write_said(said);
    printf(" finish=%s prompt=%" PRIu64, ends[report->finish], report->prompt_tokens);
    if (said->cancel_after != 0)
        return;
    uint64_t computed = report->prompt_tokens - report->cached_tokens;
    if (counts != NULL && strcmp(counts, "no") == 0)
        printf(" generated=%" PRIu64, report->generated_tokens);
    else
        printf(" cached=%" PRIu64 " computed=%" PRIu64 " generated=%" PRIu64 " reason=%s", report->cached_tokens,
               computed, report->generated_tokens, report->reason);
}

static KvikStatus answer(Runner *runner, const Line *line) {
    only(line, " prompt times conversation system user assistant max_tokens min_tokens temperature top_p top_k min_p seed stop"
               " tools tool_choice json_schema regex grammar retention counts cancel_after ");
    const char *stop[ARGUMENTS_MAX];
    KvikAnswerOptions options = {.max_tokens = number(line, "max_tokens"),
                                 .min_tokens = number(line, "min_tokens"),
                                 .temperature = fraction(line, "temperature"),
                                 .top_p = fraction(line, "top_p"),
                                 .top_k = (uint32_t)number(line, "top_k"),
                                 .min_p = fraction(line, "min_p"),
                                 .seed = number(line, "seed"),
                                 .stop = stop,
                                 .tools = find(line, "tools"),
                                 .tool_choice = find(line, "tool_choice"),
                                 .json_schema = find(line, "json_schema"),
                                 .regex = find(line, "regex"),
                                 .grammar = find(line, "grammar"),
                                 .retention = find(line, "retention")};
    for (size_t i = 0; i < line->count; i++)
        if (strcmp(line->arguments[i].name, "stop") == 0)
            stop[options.stop_count++] = line->arguments[i].value;
    Said said = {.cancel_after = number(line, "cancel_after")};
    KvikReport report;
    KvikStatus status;
    KvikMessage chat[ARGUMENTS_MAX];
    size_t count = messages(line, chat);
    if (strcmp(line->operation, "chat") == 0) {
        status = kvik_chat(runner->model, chat, count, &options, collect, &said, &report);
    } else if (strcmp(line->operation, "say") == 0) {
        const char *conversation = get(line, "conversation");
        status = kvik_say(runner->model, conversation, chat, count, &options, collect, &said, &report);
    } else {
        Text text = prompt(line);
        status = kvik_generate(runner->model, text.bytes, &options, collect, &said, &report);
        free(text.bytes);
    }
    if (status == KVIK_STATUS_OK)
        write_answer(line, &said, &report);
    free(said.text.bytes);
    free(said.reasoning.bytes);
    free(said.calls.bytes);
    return status;
}

static KvikStatus count_tokens(Runner *runner, const Line *line) {
    Text text = prompt(line);
    uint64_t tokens;
    KvikStatus status = kvik_count_tokens(runner->model, text.bytes, &tokens);
    if (status == KVIK_STATUS_OK)
        printf("count_tokens tokens=%" PRIu64, tokens);
    free(text.bytes);
    return status;
}

static KvikStatus explain(Runner *runner, const Line *line) {
    Text text = prompt(line);
    KvikExplanation known;
    KvikStatus status = kvik_explain(runner->model, text.bytes, &known);
    if (status == KVIK_STATUS_OK)
        printf("explain prompt=%" PRIu64 " known=%" PRIu64 " reason=%s", known.prompt_tokens, known.known_tokens,
               known.reason);
    free(text.bytes);
    return status;
}

static KvikStatus embed(Runner *runner, const Line *line) {
    size_t dimensions = 0;
    KvikStatus status = kvik_embed(runner->model, get(line, "input"), NULL, 0, &dimensions);
    if (status != KVIK_STATUS_TOO_SMALL)
        return status;
    float *vector = malloc(dimensions * sizeof *vector);
    status = kvik_embed(runner->model, get(line, "input"), vector, dimensions, &dimensions);
    if (status == KVIK_STATUS_OK)
        printf("embed dimensions=%zu bits=", dimensions);
    for (size_t i = 0; status == KVIK_STATUS_OK && i < dimensions; i++) {
        uint32_t bits;
        memcpy(&bits, &vector[i], sizeof bits);
        printf("%08" PRIx32, bits);
    }
    free(vector);
    return status;
}

static KvikStatus keep(Runner *runner, const Line *line) {
    bool asks = strcmp(line->operation, "is_kept") == 0;
    KvikMessage prompt[ARGUMENTS_MAX];
    size_t count = messages(line, prompt);
    KvikKept kept;
    KvikStatus status = (asks ? kvik_is_kept : kvik_keep_prompt)(runner->model, get(line, "id"), prompt, count, NULL, &kept);
    if (status != KVIK_STATUS_OK)
        return status;
    if (kept.is_known && !kept.is_changed)
        printf("%s state=kept warm=%s tokens=%" PRIu64, line->operation, kept.is_warm ? "yes" : "no", kept.tokens);
    else
        printf("%s state=%s", line->operation, kept.is_changed ? "changed" : "unknown");
    return status;
}

static const char *kind(const Runner *runner, KvikStatus status) {
    static const char *const kinds[] = {
        [KVIK_STATUS_INVALID_ARGUMENT] = "argument", [KVIK_STATUS_MODEL] = "model",
        [KVIK_STATUS_MEMORY] = "memory",             [KVIK_STATUS_DISK] = "disk",
        [KVIK_STATUS_REQUEST] = "request",           [KVIK_STATUS_TOO_SMALL] = "too_small",
        [KVIK_STATUS_INTERNAL] = "internal"};
    /* A closed model is a null handle here. */
    return runner->model == NULL && status == KVIK_STATUS_INVALID_ARGUMENT ? "closed" : kinds[status];
}

static KvikStatus keep_copies(Runner *runner, const Line *line) {
    KvikMessage prompt[ARGUMENTS_MAX];
    size_t count = messages(line, prompt);
    uint64_t copies = number(line, "copies"), i = 0;
    KvikStatus status = KVIK_STATUS_OK;
    for (; i < copies && status == KVIK_STATUS_OK; i++) {
        char id[64];
        snprintf(id, sizeof id, "%s%" PRIu64, get(line, "id"), i);
        status = kvik_keep_prompt(runner->model, id, prompt, count, NULL, NULL);
    }
    if (status == KVIK_STATUS_OK)
        printf("keep_copies kept=%" PRIu64, copies);
    else
        printf("keep_copies kept=%" PRIu64 " error=%s", i - 1, kind(runner, status));
    return KVIK_STATUS_OK;
}

static KvikStatus forget(Runner *runner, const Line *line) {
    bool known;
    KvikStatus status = kvik_forget_prompt(runner->model, get(line, "id"), &known);
    if (status == KVIK_STATUS_OK)
        printf("forget known=%s", known ? "yes" : "no");
    return status;
}

static KvikStatus memory_pressure(Runner *runner, const Line *line) {
    static const char *const levels[] = {[KVIK_MEMORY_PRESSURE_MODERATE] = "moderate",
                                         [KVIK_MEMORY_PRESSURE_HIGH] = "high",
                                         [KVIK_MEMORY_PRESSURE_CRITICAL] = "critical"};
    uint32_t level = 0;
    while (level < 3 && strcmp(levels[level], get(line, "level")) != 0)
        level++;
    return ok(kvik_on_memory_pressure(runner->model, level, NULL), line);
}

static KvikStatus background(Runner *runner, const Line *line) {
    return ok(kvik_on_background(runner->model, NULL), line);
}

static KvikStatus stats(Runner *runner, const Line *line) {
    (void)line;
    KvikStats numbers;
    KvikStatus status = kvik_stats(runner->model, &numbers);
    if (status == KVIK_STATUS_OK)
        printf("stats running=%" PRIu64 " waiting=%" PRIu64 " prompt=%" PRIu64 " cached=%" PRIu64 " generated=%" PRIu64,
               numbers.running, numbers.waiting, numbers.prompt_tokens, numbers.cached_tokens,
               numbers.generated_tokens);
    return status;
}

static KvikStatus sampling(Runner *runner, const Line *line) {
    (void)line;
    KvikSampling now;
    KvikStatus status = kvik_sampling(runner->model, &now);
    if (status != KVIK_STATUS_OK)
        return status;
    printf("sampling temperature=%.2f from=\"%s\" top_k=%.0f from=\"%s\" top_p=%.2f from=\"%s\" min_p=%.2f from=\"%s\"",
           now.temperature.value, now.temperature.source, now.top_k.value, now.top_k.source, now.top_p.value,
           now.top_p.source, now.min_p.value, now.min_p.source);
    printf(" repetition_penalty=%.2f from=\"%s\" presence_penalty=%.2f from=\"%s\" frequency_penalty=%.2f from=\"%s\"",
           now.repetition_penalty.value, now.repetition_penalty.source, now.presence_penalty.value,
           now.presence_penalty.source, now.frequency_penalty.value, now.frequency_penalty.source);
    printf(" penalty_last_n=%.0f from=\"%s\"", now.penalty_last_n.value, now.penalty_last_n.source);
    return status;
}

/* A text that the API writes where there is room: first it says how much it takes. */
typedef KvikStatus Ask(const Runner *runner, const Line *line, char *to, size_t room, size_t *needed);

static KvikStatus ask(Ask *call, const Runner *runner, const Line *line, char **text) {
    size_t needed = 0;
    KvikStatus status = call(runner, line, NULL, 0, &needed);
    if (status != KVIK_STATUS_TOO_SMALL)
        return status;
    *text = malloc(needed);
    return call(runner, line, *text, needed, &needed);
}

static KvikStatus ask_messages(const Runner *runner, const Line *line, char *to, size_t room, size_t *needed) {
    return kvik_conversation_messages(runner->model, get(line, "conversation"), to, room, needed);
}

static KvikStatus ask_conversations(const Runner *runner, const Line *line, char *to, size_t room, size_t *needed) {
    (void)line;
    return kvik_conversations(runner->model, to, room, needed);
}

static KvikStatus ask_summary(const Runner *runner, const Line *line, char *to, size_t room, size_t *needed) {
    return kvik_conversation_summary(runner->model, get(line, "conversation"), to, room, needed);
}

static KvikStatus said_in(Runner *runner, const Line *line) {
    static const char *const members[] = {"role", "content"};
    char *json = NULL;
    KvikStatus status = ask(ask_messages, runner, line, &json);
    if (status == KVIK_STATUS_OK)
        fputs("messages", stdout);
    Text message[2] = {0};
    for (const char *at = json; at != NULL && (at = read_json_object(at, 2, members, message)) != NULL;) {
        quote(message[0].bytes, &message[1]);
        message[0].count = message[1].count = 0;
    }
    free(message[0].bytes);
    free(message[1].bytes);
    free(json);
    return status;
}

static KvikStatus conversations(Runner *runner, const Line *line) {
    static const char *const members[] = {"name", "messages"};
    char *json = NULL;
    KvikStatus status = ask(ask_conversations, runner, line, &json);
    if (status == KVIK_STATUS_OK)
        fputs("conversations", stdout);
    Text one[2] = {0};
    for (const char *at = json; at != NULL && (at = read_json_object(at, 2, members, one)) != NULL;) {
        quote("name", &one[0]);
        printf(" messages=%s", one[1].bytes);
        one[0].count = one[1].count = 0;
    }
    free(one[0].bytes);
    free(one[1].bytes);
    free(json);
    return status;
}

static KvikStatus remembered(Runner *runner, const Line *line) {
    Text summary = {0};
    KvikStatus status = ask(ask_summary, runner, line, &summary.bytes);
    summary.count = summary.bytes == NULL ? 0 : strlen(summary.bytes);
    if (status == KVIK_STATUS_OK) {
        fputs("remembered", stdout);
        quote("summary", &summary);
    }
    free(summary.bytes);
    return status;
}

static KvikStatus correct(Runner *runner, const Line *line) {
    return ok(kvik_conversation_correct(runner->model, get(line, "conversation"), get(line, "summary")), line);
}

static KvikStatus take_back(Runner *runner, const Line *line) {
    return ok(kvik_conversation_take_back(runner->model, get(line, "conversation"), number(line, "from")), line);
}

static KvikStatus rename_it(Runner *runner, const Line *line) {
    return ok(kvik_conversation_rename(runner->model, get(line, "conversation"), get(line, "name")), line);
}

static KvikStatus delete_it(Runner *runner, const Line *line) {
    return ok(kvik_conversation_delete(runner->model, get(line, "conversation")), line);
}

static const struct {
    const char *name;
    Operation *run;
} OPERATIONS[] = {
    {"open", open_model},     {"close", close_model},     {"generate", answer},
    {"chat", answer},         {"count_tokens", count_tokens}, {"explain", explain},
    {"embed", embed},         {"keep", keep},             {"is_kept", keep},
    {"keep_copies", keep_copies}, {"forget", forget},     {"memory_pressure", memory_pressure},
    {"background", background}, {"stats", stats},          {"sampling", sampling},
    {"say", answer},          {"messages", said_in},      {"conversations", conversations},
    {"remembered", remembered}, {"correct", correct},     {"take_back", take_back},
    {"rename", rename_it},    {"delete", delete_it},
};

static void run(Runner *runner, const Line *line) {
    for (size_t i = 0; i < sizeof OPERATIONS / sizeof *OPERATIONS; i++) {
        if (strcmp(OPERATIONS[i].name, line->operation) == 0) {
            KvikStatus status = OPERATIONS[i].run(runner, line);
            if (status != KVIK_STATUS_OK)
                printf("%s error=%s", line->operation, kind(runner, status));
            putchar('\n');
            return;
        }
    }
    fail("an operation that this runner does not know", line->operation);
}

/* Writes the case's line; whether it is skipped. */
static bool begin_case(const Line *line) {
    only(line, " name needs ");
    Text name = {0};
    append(&name, get(line, "name"), strlen(get(line, "name")));
    const char *needs = find(line, "needs");
    bool skips = needs != NULL && strcmp(needs, "forms") != 0 && strcmp(needs, "conversations") != 0;
    fputs("case", stdout);
    quote("name", &name);
    puts(skips ? " skipped=yes" : "");
    free(name.bytes);
    return skips;
}

int main(int argc, char **argv) {
    FILE *list = argc == 4 ? fopen(argv[1], "r") : NULL;
    if (list == NULL)
        fail("cases LIST MODEL.gguf EMPTY_DIRECTORY", "the list cannot be opened");
    Runner runner = {.file = argv[2], .directory = argv[3]};
    bool skips = false;
    char *read = NULL;
    for (size_t room = 0; getline(&read, &room, list) >= 0;) {
        if (read[0] == '\n' || read[0] == '#')
            continue;
        Line line = read_line(read);
        if (strcmp(line.operation, "case") == 0)
            skips = begin_case(&line);
        else if (!skips)
            run(&runner, &line);
    }
    free(read);
    fclose(list);
    return 0;
}
