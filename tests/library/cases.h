/* The list of cases: its lines, and texts that are read and written in its form. cases.txt says what that is. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARGUMENTS_MAX 32

/* An operation and its arguments, in their order. They point into the line that was read. */
typedef struct {
    const char *operation;
    size_t count;
    struct {
        const char *name, *value;
    } arguments[ARGUMENTS_MAX];
} Line;

typedef struct {
    char *bytes;
    size_t count;
} Text;

static void fail(const char *what, const char *at) {
    fprintf(stderr, "cases.c: %s: %s\n", what, at);
    abort();
}

/* --- the list ------------------------------------------------------------------------------------------------- */

/* Reads a value where it stands: what is unescaped is no longer than what was there. What follows it. */
static char *read_value(char *at) {
    char *to = at;
    if (*at != '"') {
        at += strcspn(at, " ");
    } else {
        for (at++; *at != '"'; at++) {
            if (*at == '\0')
                fail("a text in quotes does not end", to);
            if (*at == '\\') {
                at++;
                *to++ = *at == 'n' ? '\n' : *at == 'r' ? '\r' : *at == 't' ? '\t' : *at;
            } else {
                *to++ = *at;
            }
        }
        *to = '\0';
        at++;
    }
    if (*at == ' ')
        *at++ = '\0';
    return at;
}

static Line read_line(char *at) {
    Line line = {.operation = at};
    at[strcspn(at, "\n")] = '\0';
    at += strcspn(at, " ");
    if (*at == ' ')
        *at++ = '\0';
    while (*at != '\0') {
        char *equals = strchr(at, '=');
        if (equals == NULL || line.count == ARGUMENTS_MAX)
            fail("an argument has no value, or there are too many", at);
        *equals = '\0';
        line.arguments[line.count].name = at;
        line.arguments[line.count++].value = equals + 1;
        at = read_value(equals + 1);
    }
    return line;
}

static const char *find(const Line *line, const char *name) {
    for (size_t i = 0; i < line->count; i++)
        if (strcmp(line->arguments[i].name, name) == 0)
            return line->arguments[i].value;
    return NULL;
}

static const char *get(const Line *line, const char *name) {
    const char *value = find(line, name);
    if (value == NULL)
        fail("an argument is missing", name);
    return value;
}

static uint64_t number(const Line *line, const char *name) {
    const char *value = find(line, name);
    return value == NULL ? 0 : strtoull(value, NULL, 10);
}

static float fraction(const Line *line, const char *name) {
    const char *value = find(line, name);
    return value == NULL ? 0 : strtof(value, NULL);
}

/* Fails where an argument is none of these: the list says more than the runner does. */
static void only(const Line *line, const char *known) {
    for (size_t i = 0; i < line->count; i++) {
        char word[64];
        snprintf(word, sizeof word, " %s ", line->arguments[i].name);
        if (strstr(known, word) == NULL)
            fail("an argument that this runner does not know", line->arguments[i].name);
    }
}

/* --- texts ---------------------------------------------------------------------------------------------------- */

static void append(Text *text, const char *bytes, size_t count) {
    text->bytes = realloc(text->bytes, text->count + count + 1);
    if (text->bytes == NULL)
        fail("no memory", "a text");
    memcpy(text->bytes + text->count, bytes, count);
    text->count += count;
    text->bytes[text->count] = '\0';
}

static void quote(const char *name, const Text *text) {
    printf(" %s=\"", name);
    for (size_t i = 0; i < text->count; i++) {
        char byte = text->bytes[i];
        const char *escaped = byte == '\n'   ? "\\n"
                              : byte == '\r' ? "\\r"
                              : byte == '\t' ? "\\t"
                              : byte == '"'  ? "\\\""
                              : byte == '\\' ? "\\\\"
                                             : NULL;
        if (escaped != NULL)
            fputs(escaped, stdout);
        else
            putchar(byte);
    }
    putchar('"');
}

/* --- JSON: arrays of flat objects, as the API gives them -------------------------------------------------------- */

/* Reads a text at its quote: what follows it. */
static const char *read_json_text(const char *at, Text *to) {
    static const char letters[] = "n\nr\rt\tb\bf\f";
    for (at++; *at != '"'; at++) {
        if (*at == '\0')
            fail("a text of JSON does not end", at);
        if (*at != '\\') {
            append(to, at, 1);
            continue;
        }
        at++;
        const char *letter = strchr(letters, *at);
        char byte = letter != NULL && (letter - letters) % 2 == 0 ? letter[1] : *at;
        if (*at == 'u') {
            /* Only control characters are written so. */
            char digits[5] = {0};
            memcpy(digits, at + 1, 4);
            byte = (char)strtol(digits, NULL, 16);
            at += 4;
        }
        append(to, &byte, 1);
    }
    return at + 1;
}

/* Reads the members of an object at its brace: those of `count` names into `values`, numbers as they stand there. What
 * follows it; null where there is no object. */
static const char *read_json_object(const char *at, size_t count, const char *const *names, Text *values) {
    at += strspn(at, "[, ");
    if (*at != '{')
        return NULL;
    while (*at != '}') {
        Text name = {0}, value = {0};
        at = read_json_text(at + 1, &name);
        at++; /* the colon */
        if (*at == '"') {
            at = read_json_text(at, &value);
        } else {
            size_t bytes = strcspn(at, ",}");
            append(&value, at, bytes);
            at += bytes;
        }
        for (size_t i = 0; i < count; i++)
            if (strcmp(names[i], name.bytes) == 0)
                append(&values[i], value.bytes == NULL ? "" : value.bytes, value.count);
        free(name.bytes);
        free(value.bytes);
    }
    return at + 1;
}
