/* Answers a question, and says what came from the cache: answer MODEL.gguf DIRECTORY "QUESTION"
 *
 * Asked twice, also by two processes, it computes the instructions once. */
#include <inttypes.h>
#include <stdio.h>

#include "kvik.h"

static bool print_piece(KvikPieceKind kind, const char *piece, size_t bytes, void *context) {
    (void)context;
    if (kind == KVIK_PIECE_KIND_TEXT) {
        fwrite(piece, 1, bytes, stdout);
        fflush(stdout);
    }
    return true;
}

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, kvik_last_error());
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s MODEL.gguf DIRECTORY QUESTION\n", argv[0]);
        return 2;
    }
    KvikOptions options = {.disk_dir = argv[2]};
    KvikModel *model = NULL;
    if (kvik_open_file(argv[1], &options, &model) != KVIK_STATUS_OK)
        return fail("the model cannot be opened");

    KvikMessage messages[] = {
        {.role = KVIK_ROLE_SYSTEM, .content = "You answer in one sentence, and say so when you do not know."},
        {.role = KVIK_ROLE_USER, .content = argv[3]},
    };
    KvikAnswerOptions brief = {.max_tokens = 48};
    int failed = 0;
    if (kvik_keep_prompt(model, "instructions", messages, 1, &brief, NULL) != KVIK_STATUS_OK)
        failed = fail("the instructions cannot be kept");

    KvikReport report;
    if (kvik_chat(model, messages, 2, &brief, print_piece, NULL, &report) != KVIK_STATUS_OK)
        failed = fail("no answer");
    else
        fprintf(stderr, "\n%" PRIu64 " prompt tokens, %" PRIu64 " from the cache (%s), %" PRIu64 " generated\n",
                report.prompt_tokens, report.cached_tokens, report.reason, report.generated_tokens);

    if (kvik_close(model) != KVIK_STATUS_OK)
        failed = fail("not everything is on disk");
    return failed;
}
