/* Every function of kvik.h, under the address sanitiser: api MODEL.gguf EMPTY_DIRECTORY
 *
 * CI compiles it with -Wall -Wextra -Werror; it ends with a line on success and aborts at the first surprise. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvik.h"

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition,                  \
                    kvik_last_error());                                                                      \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)
#define OK(call) CHECK((call) == KVIK_STATUS_OK)

typedef struct {
    char text[8192];
    size_t bytes;
    size_t pieces;
    size_t pieces_max; /* cancels after so many; 0 never does */
} Text;

static bool collect(KvikPieceKind kind, const char *piece, size_t bytes, void *context) {
    Text *to = context;
    CHECK(piece[bytes] == '\0');
    if (kind == KVIK_PIECE_KIND_TEXT) {
        CHECK(to->bytes + bytes < sizeof to->text);
        memcpy(to->text + to->bytes, piece, bytes + 1);
        to->bytes += bytes;
    }
    to->pieces++;
    return to->pieces_max == 0 || to->pieces < to->pieces_max;
}

static const char PROMPT[] = "Once upon a time there was a river that was not on any map. Once upon a time";
static const KvikAnswerOptions BRIEF = {.max_tokens = 16};

static Text generate(const KvikModel *model, KvikReport *report) {
    Text text = {0};
    OK(kvik_generate(model, PROMPT, &BRIEF, collect, &text, report));
    return text;
}

static void answers_stream_and_are_reused(const KvikModel *model) {
    KvikReport cold, warm;
    KvikExplanation explanation;
    OK(kvik_explain(model, PROMPT, &explanation));
    CHECK(explanation.known_tokens == 0 && strcmp(explanation.reason, "first_seen") == 0);
    Text first = generate(model, &cold), again = generate(model, &warm);
    CHECK(first.bytes > 0 && strcmp(first.text, again.text) == 0);
    CHECK(cold.finish == KVIK_FINISH_LENGTH && cold.generated_tokens == 16 && cold.cached_tokens == 0);
    CHECK(warm.prompt_tokens == cold.prompt_tokens && warm.cached_tokens == warm.prompt_tokens - 1);
    CHECK(strcmp(warm.reason, "complete") == 0);
    uint64_t tokens = 0;
    OK(kvik_count_tokens(model, PROMPT, &tokens));
    CHECK(tokens == cold.prompt_tokens);
    /* Nobody has to listen, and nobody has to want a report. */
    OK(kvik_generate(model, PROMPT, &BRIEF, NULL, NULL, NULL));
}

static void answers_are_sampled_as_recommended(const KvikModel *model) {
    KvikSampling sampling;
    OK(kvik_sampling(model, &sampling));
    CHECK(sampling.temperature.value == 0 && strcmp(sampling.temperature.source, "family kvik-tiny") == 0);
    CHECK(sampling.top_k.value == 40 && strcmp(sampling.top_k.source, "kvik") == 0);
    CHECK(sampling.top_p.value == 0.95 && sampling.penalty_last_n.value == 64);
    KvikReport report;
    Text usual = generate(model, &report), greedy = {0}, hot = {0}, again = {0};
    KvikAnswerOptions options = {.max_tokens = 16, .temperature = KVIK_GREEDY};
    OK(kvik_generate(model, PROMPT, &options, collect, &greedy, NULL));
    CHECK(strcmp(greedy.text, usual.text) == 0);
    KvikAnswerOptions drawn = {.max_tokens = 16, .temperature = 2, .seed = 7, .top_k = KVIK_KEEP_ALL, .top_p = 1, .min_p = -1};
    OK(kvik_generate(model, PROMPT, &drawn, collect, &hot, NULL));
    OK(kvik_generate(model, PROMPT, &drawn, collect, &again, NULL));
    CHECK(strcmp(hot.text, again.text) == 0 && strcmp(hot.text, usual.text) != 0);
    options.top_p = -0.5f;
    CHECK(kvik_generate(model, PROMPT, &options, NULL, NULL, NULL) == KVIK_STATUS_INVALID_ARGUMENT);
}

static void tokens_are_biased(const KvikModel *model) {
    size_t count = 0;
    CHECK(kvik_tokens(model, " river", NULL, 0, &count) == KVIK_STATUS_TOO_SMALL);
    uint32_t tokens[8];
    CHECK(count > 0 && count <= 8);
    OK(kvik_tokens(model, " river", tokens, 8, &count));
    KvikLogitBias bias = {.token = tokens[0], .bias = 1e9f};
    KvikAnswerOptions options = {.max_tokens = 4, .temperature = KVIK_GREEDY, .logit_bias = &bias, .logit_bias_count = 1};
    Text said = {0}, again = {0};
    OK(kvik_generate(model, PROMPT, &options, collect, &said, NULL));
    bias.bias = -1e9f;
    OK(kvik_generate(model, PROMPT, &options, collect, &again, NULL));
    CHECK(strcmp(said.text, again.text) != 0);
    bias.bias = 1e10f;
    CHECK(kvik_generate(model, PROMPT, &options, NULL, NULL, NULL) == KVIK_STATUS_INVALID_ARGUMENT);
}

static void answers_stop_where_they_are_told(const KvikModel *model) {
    KvikReport report;
    Text whole = generate(model, &report), cut = {0}, cancelled = {.pieces_max = 2};
    char word[4] = {0};
    memcpy(word, whole.text + whole.bytes / 2, 3);
    const char *stop[] = {"never said", word};
    KvikAnswerOptions stopping = {.max_tokens = 16, .stop = stop, .stop_count = 2};
    OK(kvik_generate(model, PROMPT, &stopping, collect, &cut, &report));
    CHECK(report.finish == KVIK_FINISH_STOP && cut.bytes < whole.bytes && !strstr(cut.text, word));
    KvikAnswerOptions lengthy = {.max_tokens = 1800, .min_tokens = 1800, .temperature = 0.9f, .seed = 7};
    OK(kvik_generate(model, PROMPT, &lengthy, collect, &cancelled, &report));
    CHECK(report.finish == KVIK_FINISH_CANCELLED && cancelled.pieces == 2 && report.generated_tokens < 1800);
}

static void chats_and_kept_prompts(const KvikModel *model) {
    KvikMessage messages[] = {{.role = KVIK_ROLE_SYSTEM, .content = "You sort notifications: now, later or never."},
                              {.role = KVIK_ROLE_USER, .content = "The kettle boils."},
                              {.role = KVIK_ROLE_ASSISTANT, .content = "now"},
                              {.role = KVIK_ROLE_USER, .content = "A newsletter came."}};
    KvikKept kept;
    OK(kvik_is_kept(model, "notify", messages, 1, NULL, &kept));
    CHECK(!kept.is_known && !kept.is_warm);
    OK(kvik_keep_prompt(model, "notify", messages, 1, &BRIEF, &kept));
    CHECK(kept.is_known && kept.is_warm && kept.tokens > 0 && kept.ram_tokens >= kept.tokens - 1);
    OK(kvik_is_kept(model, "notify", messages, 2, NULL, &kept));
    CHECK(kept.is_known && kept.is_changed && !kept.is_warm);
    KvikAnswerOptions wrong = {.tools = "[{}]"};
    CHECK(kvik_is_kept(model, "notify", messages, 1, &wrong, &kept) == KVIK_STATUS_REQUEST);
    CHECK(kvik_keep_prompt(model, "notify", messages, 1, &wrong, &kept) == KVIK_STATUS_REQUEST);
    KvikReport report, quick;
    Text text = {0};
    OK(kvik_chat(model, messages, 4, &BRIEF, collect, &text, &report));
    CHECK(report.cached_tokens > 0 && report.generated_tokens > 0);
    /* The embedded model's template begins the answer with thoughts that are over. */
    KvikAnswerOptions unthinking = {.max_tokens = 1, .reasoning = -1};
    OK(kvik_chat(model, messages, 4, &unthinking, NULL, NULL, &quick));
    CHECK(quick.prompt_tokens > report.prompt_tokens);
    messages[1].role = 7;
    CHECK(kvik_chat(model, messages, 4, &BRIEF, NULL, NULL, NULL) == KVIK_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(kvik_last_error(), "role"));
}

static void embeddings(const KvikModel *model) {
    size_t dimensions = 0;
    CHECK(kvik_embed(model, "A garden", NULL, 0, &dimensions) == KVIK_STATUS_TOO_SMALL);
    CHECK(dimensions > 0);
    float *vector = malloc(dimensions * sizeof *vector), length = 0;
    OK(kvik_embed(model, "A garden", vector, dimensions, &dimensions));
    for (size_t i = 0; i < dimensions; i++)
        length += vector[i] * vector[i];
    CHECK(length > 0.999f && length < 1.001f);
    free(vector);
}

static void *ask_from_a_thread(void *context) {
    Text *text = malloc(sizeof *text);
    KvikReport report;
    *text = generate(context, &report);
    /* A failure here says nothing to other threads. */
    CHECK(kvik_generate(context, NULL, NULL, NULL, NULL, NULL) == KVIK_STATUS_INVALID_ARGUMENT);
    return text;
}

static void threads_share_a_model(KvikModel *model) {
    KvikReport report;
    Text expect = generate(model, &report);
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        CHECK(pthread_create(&threads[i], NULL, ask_from_a_thread, model) == 0);
    for (int i = 0; i < 8; i++) {
        void *text = NULL;
        CHECK(pthread_join(threads[i], &text) == 0);
        CHECK(strcmp(((Text *)text)->text, expect.text) == 0);
        free(text);
    }
}

static void the_system_gets_what_it_asks_for(const KvikModel *model) {
    uint64_t evicted = 0, unwritten = 1;
    KvikStats before, after;
    OK(kvik_stats(model, &before));
    CHECK(before.kv_cached_bytes > 0 && before.cached_tokens > 0);
    OK(kvik_on_memory_pressure(model, KVIK_MEMORY_PRESSURE_CRITICAL, &evicted));
    OK(kvik_stats(model, &after));
    CHECK(evicted > 0 && after.kv_cached_bytes + evicted == before.kv_cached_bytes);
    OK(kvik_on_background(model, &unwritten));
    CHECK(unwritten == 0);
    CHECK(kvik_on_memory_pressure(model, 9, NULL) == KVIK_STATUS_INVALID_ARGUMENT);
}

static bool takes_calls(KvikPieceKind kind, const char *piece, size_t bytes, void *context) {
    char *call = context;
    if (kind == KVIK_PIECE_KIND_CALL) {
        CHECK(bytes < 512);
        memcpy(call, piece, bytes + 1);
    }
    return true;
}

static void answers_are_held_to_a_form(const KvikModel *model) {
    KvikMessage ask = {.role = KVIK_ROLE_USER, .content = "What is the weather?"};
    KvikAnswerOptions one = {.max_tokens = 100, .regex = "(now|later|never)"};
    Text text = {0};
    KvikStatus held = kvik_chat(model, &ask, 1, &one, collect, &text, NULL);
    if (held == KVIK_STATUS_REQUEST && strstr(kvik_last_error(), "no grammars")) {
        puts("api.c: this build has no grammars, so nothing can be held to a form");
        return;
    }
    OK(held);
    CHECK(!strcmp(text.text, "now") || !strcmp(text.text, "later") || !strcmp(text.text, "never"));
    KvikAnswerOptions both = {.regex = "a", .json_schema = "{}"};
    CHECK(kvik_chat(model, &ask, 1, &both, NULL, NULL, NULL) == KVIK_STATUS_INVALID_ARGUMENT);
    KvikAnswerOptions tools = {.max_tokens = 200,
                               .tools = "[{\"function\": {\"name\": \"weather\"}}]",
                               .tool_choice = "required"};
    char call[512] = "";
    OK(kvik_chat(model, &ask, 1, &tools, takes_calls, call, NULL));
    CHECK(strstr(call, "\"name\":\"weather\"") && strstr(call, "\"arguments\":"));
    char calls[600];
    snprintf(calls, sizeof calls, "[%s]", call);
    KvikMessage said[] = {ask,
                          {.role = KVIK_ROLE_ASSISTANT, .content = "", .tool_calls = calls},
                          {.role = KVIK_ROLE_TOOL, .content = "It is sunny.", .tool_call_id = "call_1"}};
    OK(kvik_chat(model, said, 3, &BRIEF, NULL, NULL, NULL));
    tools.tool_choice = "news";
    CHECK(kvik_chat(model, &ask, 1, &tools, NULL, NULL, NULL) == KVIK_STATUS_REQUEST);
    KvikAnswerOptions part = {.max_tokens = 4, .retention = "sinks:0.5"}, unknown = {.retention = "all:x"};
    OK(kvik_generate(model, PROMPT, &part, NULL, NULL, NULL));
    CHECK(kvik_generate(model, PROMPT, &unknown, NULL, NULL, NULL) == KVIK_STATUS_INVALID_ARGUMENT);
}

static void conversations_go_on(const KvikModel *model) {
    KvikMessage said[] = {{.role = KVIK_ROLE_SYSTEM, .content = "Be brief."},
                          {.role = KVIK_ROLE_USER, .content = "Who are you?"}};
    Text first = {0}, again = {0};
    OK(kvik_say(model, "trip", said, 2, &BRIEF, collect, &first, NULL));
    OK(kvik_chat(model, said, 2, &BRIEF, collect, &again, NULL));
    CHECK(first.bytes > 0 && !strcmp(first.text, again.text));
    bool stored = true;
    OK(kvik_conversations_are_stored(model, &stored));
    CHECK(!stored);
    char json[4096];
    size_t needed = 0;
    CHECK(kvik_conversation_messages(model, "trip", NULL, 0, &needed) == KVIK_STATUS_TOO_SMALL);
    CHECK(needed > 1 && needed <= sizeof json);
    OK(kvik_conversation_messages(model, "trip", json, needed, &needed));
    CHECK(strlen(json) + 1 == needed && strstr(json, "Who are you?") && strstr(json, "\"assistant\""));
    OK(kvik_conversation_rename(model, "trip", "first trip"));
    OK(kvik_conversations(model, json, sizeof json, &needed));
    CHECK(strstr(json, "\"name\":\"first trip\"") && strstr(json, "\"messages\":3"));
    OK(kvik_conversation_summary(model, "first trip", json, sizeof json, NULL));
    CHECK(json[0] == '\0');
    CHECK(kvik_conversation_correct(model, "first trip", "A trip.") == KVIK_STATUS_REQUEST);
    OK(kvik_conversation_take_back(model, "first trip", 1));
    OK(kvik_conversation_delete(model, "first trip"));
    CHECK(kvik_conversation_delete(model, "first trip") == KVIK_STATUS_REQUEST);
}

static void what_is_wrong_is_said(const char *path) {
    KvikModel *model = NULL;
    CHECK(kvik_open_file(NULL, NULL, &model) == KVIK_STATUS_INVALID_ARGUMENT && strstr(kvik_last_error(), "path"));
    CHECK(kvik_open_file(path, NULL, NULL) == KVIK_STATUS_INVALID_ARGUMENT);
    CHECK(kvik_open_file("/nowhere/model.gguf", NULL, &model) == KVIK_STATUS_MODEL);
    CHECK(strstr(kvik_last_error(), "/nowhere/model.gguf"));
    CHECK(kvik_open_bytes((const uint8_t *)"GGUF", 4, NULL, &model) == KVIK_STATUS_MODEL);
    KvikOptions small = {.kv_bytes = 7};
    CHECK(kvik_open_file(path, &small, &model) == KVIK_STATUS_MEMORY && strstr(kvik_last_error(), "7 bytes"));
    KvikOptions threads = {.threads = UINT32_MAX}, parallel = {.parallel = UINT32_MAX};
    CHECK(kvik_open_file(path, &threads, &model) == KVIK_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(kvik_last_error(), "`threads` is 4294967295"));
    CHECK(kvik_open_file(path, &parallel, &model) == KVIK_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(kvik_last_error(), "parallel"));
    CHECK(kvik_open_part(-1, 0, 0, NULL, &model) == KVIK_STATUS_INVALID_ARGUMENT);
    CHECK(model == NULL);
    CHECK(kvik_stats(NULL, NULL) == KVIK_STATUS_INVALID_ARGUMENT);
    OK(kvik_close(NULL));
}

static void another_process_finds_it(const char *path, const KvikOptions *options, const char *expect) {
    KvikModel *model = NULL;
    int file = open(path, O_RDONLY);
    CHECK(file >= 0);
    OK(kvik_open_part(file, 0, 0, options, &model));
    close(file);
    KvikMessage message = {.role = KVIK_ROLE_SYSTEM, .content = "You sort notifications: now, later or never."};
    KvikKept kept;
    OK(kvik_is_kept(model, "notify", &message, 1, NULL, &kept));
    CHECK(kept.is_warm);
    KvikReport report;
    Text text = generate(model, &report);
    CHECK(strcmp(text.text, expect) == 0 && report.cached_tokens > 0);
    bool known = false;
    OK(kvik_forget_prompt(model, "notify", &known));
    CHECK(known);
    OK(kvik_forget_prompt(model, "notify", &known));
    CHECK(!known);
    OK(kvik_close(model));
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    what_is_wrong_is_said(argv[1]);
    KvikOptions options = {.kv_bytes = 64 << 20, .threads = 2, .disk_dir = argv[2]};
    KvikModel *model = NULL;
    OK(kvik_open_file(argv[1], &options, &model));
    answers_stream_and_are_reused(model);
    answers_are_sampled_as_recommended(model);
    tokens_are_biased(model);
    answers_stop_where_they_are_told(model);
    chats_and_kept_prompts(model);
    embeddings(model);
    answers_are_held_to_a_form(model);
    conversations_go_on(model);
    threads_share_a_model(model);
    KvikReport report;
    Text text = generate(model, &report);
    the_system_gets_what_it_asks_for(model);
    OK(kvik_close(model));
    another_process_finds_it(argv[1], &options, text.text);
    puts("api.c: all is as kvik.h says");
    return 0;
}
