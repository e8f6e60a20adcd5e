/* kvik in C: a model, its answers, and the cache that keeps them fast. See docs/library.md.
 *
 * Written by cbindgen from crates/kvik-c/src; KVIK_WRITE_HEADER=1 cargo test -p kvik-c writes it again. */

#ifndef KVIK_H
#define KVIK_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/**
 * Whether a call did what it was asked; `kvik_last_error` says why not.
 */
typedef enum KvikStatus {
  /**
   * It did.
   */
  KVIK_STATUS_OK = 0,
  /**
   * A pointer is null, a text is not UTF-8, or a number is none of those it may be.
   */
  KVIK_STATUS_INVALID_ARGUMENT = 1,
  /**
   * The model cannot be read or used.
   */
  KVIK_STATUS_MODEL = 2,
  /**
   * The memory or the sizes asked for cannot be had.
   */
  KVIK_STATUS_MEMORY = 3,
  /**
   * The directory on disk cannot be used.
   */
  KVIK_STATUS_DISK = 4,
  /**
   * The engine refused the request, or it failed.
   */
  KVIK_STATUS_REQUEST = 5,
  /**
   * Room for the result is too small; how much it takes was written.
   */
  KVIK_STATUS_TOO_SMALL = 6,
  /**
   * Something failed inside. Other calls go on.
   */
  KVIK_STATUS_INTERNAL = 7,
} KvikStatus;

/**
 * What a piece of an answer is.
 */
typedef enum KvikPieceKind {
  /**
   * More of the answer.
   */
  KVIK_PIECE_KIND_TEXT = 0,
  /**
   * More of what the model thinks before it answers.
   */
  KVIK_PIECE_KIND_REASONING = 1,
  /**
   * A whole call of a tool: `{"id": "...", "name": "...", "arguments": "..."}`, where the arguments are JSON in a text.
   */
  KVIK_PIECE_KIND_CALL = 2,
} KvikPieceKind;

/**
 * Why an answer ended.
 */
typedef enum KvikFinish {
  /**
   * The model ended it.
   */
  KVIK_FINISH_END = 0,
  /**
   * One of the texts to stop at came next.
   */
  KVIK_FINISH_STOP = 1,
  /**
   * It has as many tokens as it may have.
   */
  KVIK_FINISH_LENGTH = 2,
  /**
   * It was cancelled.
   */
  KVIK_FINISH_CANCELLED = 3,
} KvikFinish;

/**
 * Who says a message.
 */
typedef enum KvikRole {
  /**
   * The program, to the model.
   */
  KVIK_ROLE_SYSTEM = 0,
  /**
   * The user.
   */
  KVIK_ROLE_USER = 1,
  /**
   * The model.
   */
  KVIK_ROLE_ASSISTANT = 2,
  /**
   * A tool that the model called.
   */
  KVIK_ROLE_TOOL = 3,
} KvikRole;

/**
 * How much memory the system wants back.
 */
typedef enum KvikMemoryPressure {
  /**
   * Half of what is cached, and all that is free.
   */
  KVIK_MEMORY_PRESSURE_MODERATE = 0,
  /**
   * Three quarters of what is cached.
   */
  KVIK_MEMORY_PRESSURE_HIGH = 1,
  /**
   * All that is not kept under a name or in use.
   */
  KVIK_MEMORY_PRESSURE_CRITICAL = 2,
} KvikMemoryPressure;

/**
 * A model. What is in it is not C's business.
 */
typedef struct KvikModel KvikModel;

/**
 * What an answer is asked for with. All zeros are the likeliest tokens up to the end of the context, and so is null.
 */
typedef struct KvikAnswerOptions {
  /**
   * Tokens of the answer at most; 0 is the rest of the context.
   */
  uint64_t max_tokens;
  /**
   * Tokens that it has before the model may end it.
   */
  uint64_t min_tokens;
  /**
   * How far from the likeliest tokens it may go; 0 takes these.
   */
  float temperature;
  /**
   * Keeps the smallest set of tokens whose probability reaches this; 0 keeps all.
   */
  float top_p;
  /**
   * Keeps so many of the likeliest tokens; 0 keeps all.
   */
  uint32_t top_k;
  /**
   * The same seed gives the same text.
   */
  uint64_t seed;
  /**
   * `stop_count` texts before the first of which the answer ends.
   */
  const char *const *stop;
  /**
   * See `stop`.
   */
  size_t stop_count;
  /**
   * Tools that a chat may call, as OpenAI writes them: a JSON array; null are none.
   */
  const char *tools;
  /**
   * `none`, `auto`, `required`, or the name of a tool; null is `auto`.
   */
  const char *tool_choice;
  /**
   * A JSON schema that the answer satisfies, or null. One of this and the next two at most.
   */
  const char *json_schema;
  /**
   * A regular expression that it matches, or null.
   */
  const char *regex;
  /**
   * A Lark grammar (of llguidance) that accepts it, or null.
   */
  const char *grammar;
  /**
   * By what a long prompt is read in part, as `keydiff:0.5` (docs/retention.md); null reads all of it.
   */
  const char *retention;
} KvikAnswerOptions;

/**
 * Takes a piece of an answer: `bytes` bytes of whole characters in UTF-8, and a nul behind them; they are gone when it
 * returns. It is called on the thread that asked. False cancels the answer.
 */
typedef bool (*KvikPieceCallback)(enum KvikPieceKind kind, const char *piece, size_t bytes, void *context);

/**
 * What an answer took.
 */
typedef struct KvikReport {
  /**
   * Why it ended.
   */
  enum KvikFinish finish;
  /**
   * Tokens of the prompt.
   */
  uint64_t prompt_tokens;
  /**
   * Of these, tokens that came from the cache.
   */
  uint64_t cached_tokens;
  /**
   * Of these, tokens that came from disk.
   */
  uint64_t disk_tokens;
  /**
   * Tokens of the answer.
   */
  uint64_t generated_tokens;
  /**
   * Why no more of the prompt came from the cache, as `first_seen`; empty where that is not known.
   */
  char reason[32];
  /**
   * Seconds in the queue.
   */
  double queued_s;
  /**
   * Seconds from there to the first token.
   */
  double prefill_s;
  /**
   * Seconds from the first token to the last.
   */
  double decode_s;
} KvikReport;

/**
 * A message of a chat.
 */
typedef struct KvikMessage {
  /**
   * One of `KvikRole`.
   */
  uint32_t role;
  /**
   * What is said.
   */
  const char *content;
  /**
   * Calls of the model, a JSON array of what `KVIK_PIECE_KIND_CALL` pieces are; null are none.
   */
  const char *tool_calls;
  /**
   * The call that a tool answers, or null.
   */
  const char *tool_call_id;
} KvikMessage;

/**
 * What is known of a kept prompt.
 */
typedef struct KvikKept {
  /**
   * Whether something is kept under the name.
   */
  bool is_known;
  /**
   * Whether that is something else.
   */
  bool is_changed;
  /**
   * Whether an answer would compute nothing of it, but for its last token.
   */
  bool is_warm;
  /**
   * Its tokens.
   */
  uint64_t tokens;
  /**
   * Of these, tokens in RAM.
   */
  uint64_t ram_tokens;
  /**
   * Of these, tokens that would be read from disk.
   */
  uint64_t disk_tokens;
} KvikKept;

/**
 * What a text would find in the cache now.
 */
typedef struct KvikExplanation {
  /**
   * Its tokens.
   */
  uint64_t prompt_tokens;
  /**
   * Of these, tokens that would not be computed.
   */
  uint64_t known_tokens;
  /**
   * Of these, tokens that would be read from disk.
   */
  uint64_t disk_tokens;
  /**
   * Why no more are known, as `diverged`.
   */
  char reason[32];
} KvikExplanation;

/**
 * What a model is opened with. Where a number is 0 or a pointer null, the usual is taken; all of it where there are no
 * options.
 */
typedef struct KvikOptions {
  /**
   * Bytes of RAM for keys and values (half of the free memory, at most 8 GiB).
   */
  uint64_t kv_bytes;
  /**
   * Tokens of a prompt and its answer together (the model's own, or what fits).
   */
  uint64_t context_tokens;
  /**
   * Threads that compute (the number of fast cores).
   */
  uint32_t threads;
  /**
   * Answers computed at the same time (4).
   */
  uint32_t parallel;
  /**
   * Directory in which computed blocks outlive the process (none).
   */
  const char *disk_dir;
  /**
   * Its size in bytes at most, and never more than a tenth of the free space (2 GiB).
   */
  uint64_t disk_bytes_max;
  /**
   * Directory in which conversations outlive the process (none).
   */
  const char *conversations_dir;
  /**
   * The share of time in which to compute, at most 1 (1): rests keep a device cool, and answers are the same.
   */
  float time_share;
} KvikOptions;

/**
 * The engine after its last step. Where there is no disk its numbers are 0.
 */
typedef struct KvikStats {
  /**
   * Answers being computed.
   */
  uint64_t running;
  /**
   * Answers that wait.
   */
  uint64_t waiting;
  /**
   * Bytes for keys and values.
   */
  uint64_t kv_bytes;
  /**
   * Of these, bytes that hold cached prefixes.
   */
  uint64_t kv_cached_bytes;
  /**
   * Of these, bytes that hold nothing.
   */
  uint64_t kv_free_bytes;
  /**
   * Prompt tokens so far.
   */
  uint64_t prompt_tokens;
  /**
   * Of these, tokens that came from the cache.
   */
  uint64_t cached_tokens;
  /**
   * Tokens generated so far.
   */
  uint64_t generated_tokens;
  /**
   * Blocks on disk.
   */
  uint64_t disk_blocks;
  /**
   * Computed blocks that are still to be written.
   */
  uint64_t unwritten_blocks;
} KvikStats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Continues a text. Names of control tokens in it stand for these tokens: texts of users belong into messages.
 *
 * # Safety
 * `model` is an open handle, `prompt` a text, `options` null or options with texts to stop at, `report` null or a place
 * for a report; `on_piece` is null or may be called with `context` on this thread.
 */
enum KvikStatus kvik_generate(const struct KvikModel *model,
                              const char *prompt,
                              const struct KvikAnswerOptions *options,
                              KvikPieceCallback on_piece,
                              void *context,
                              struct KvikReport *report);

/**
 * Answers `count` messages, in the form of the model's chat template. Nothing in them is taken for a control token.
 *
 * # Safety
 * `messages` are `count` messages with texts; otherwise as `kvik_generate`.
 */
enum KvikStatus kvik_chat(const struct KvikModel *model,
                          const struct KvikMessage *messages,
                          size_t count,
                          const struct KvikAnswerOptions *options,
                          KvikPieceCallback on_piece,
                          void *context,
                          struct KvikReport *report);

/**
 * Says something in a conversation, a name or an id, and answers it. It begins with its first answer. Question and answer
 * are written down together; those of an answer that is cancelled are not.
 *
 * # Safety
 * `conversation` is a text, `messages` are `count` messages with texts; otherwise as `kvik_generate`.
 */
enum KvikStatus kvik_say(const struct KvikModel *model,
                         const char *conversation,
                         const struct KvikMessage *messages,
                         size_t count,
                         const struct KvikAnswerOptions *options,
                         KvikPieceCallback on_piece,
                         void *context,
                         struct KvikReport *report);

/**
 * All conversations, those that were changed last first: a JSON array of `{"id", "name", "created_s", "updated_s",
 * "messages"}`. `needed` learns how many bytes that takes; where `room` is less, `KVIK_STATUS_TOO_SMALL`.
 *
 * # Safety
 * `model` is an open handle, `json` null or a place for `room` bytes, `needed` null or a place.
 */
enum KvikStatus kvik_conversations(const struct KvikModel *model,
                                   char *json,
                                   size_t room,
                                   size_t *needed);

/**
 * What was said in a conversation: a JSON array of `{"role", "content", "tool_calls", "tool_call_id"}`, the last two where
 * there are any.
 *
 * # Safety
 * `conversation` is a text; otherwise as `kvik_conversations`.
 */
enum KvikStatus kvik_conversation_messages(const struct KvikModel *model,
                                           const char *conversation,
                                           char *json,
                                           size_t room,
                                           size_t *needed);

/**
 * The newest summary of a conversation; an empty text where there is none.
 *
 * # Safety
 * As `kvik_conversation_messages`.
 */
enum KvikStatus kvik_conversation_summary(const struct KvikModel *model,
                                          const char *conversation,
                                          char *summary,
                                          size_t room,
                                          size_t *needed);

/**
 * From now on the newest summary of a conversation says this, which its next turn is told.
 *
 * # Safety
 * `model` is an open handle, the others are texts.
 */
enum KvikStatus kvik_conversation_correct(const struct KvikModel *model,
                                          const char *conversation,
                                          const char *summary);

/**
 * Takes back the messages of a conversation from this index on, and what is remembered of them.
 *
 * # Safety
 * `model` is an open handle, `conversation` a text.
 */
enum KvikStatus kvik_conversation_take_back(const struct KvikModel *model,
                                            const char *conversation,
                                            size_t from);

/**
 * Gives a conversation another name.
 *
 * # Safety
 * `model` is an open handle, the others are texts.
 */
enum KvikStatus kvik_conversation_rename(const struct KvikModel *model,
                                         const char *conversation,
                                         const char *name);

/**
 * Deletes a conversation, and all that is remembered of it.
 *
 * # Safety
 * `model` is an open handle, `conversation` a text.
 */
enum KvikStatus kvik_conversation_delete(const struct KvikModel *model, const char *conversation);

/**
 * Computes messages with which chats begin, as far as they are not known, and keeps them under a name until they are
 * forgotten: in RAM, and on disk, where another process finds them. What the name stood for before is let go.
 *
 * # Safety
 * `model` is an open handle, `id` a text, `messages` are `count` messages with texts, `kept` is null or a place.
 */
enum KvikStatus kvik_keep_prompt(const struct KvikModel *model,
                                 const char *id,
                                 const struct KvikMessage *messages,
                                 size_t count,
                                 struct KvikKept *kept);

/**
 * Whether these messages are what is kept under a name, and how much of them need not be computed.
 *
 * # Safety
 * As `kvik_keep_prompt`.
 */
enum KvikStatus kvik_is_kept(const struct KvikModel *model,
                             const char *id,
                             const struct KvikMessage *messages,
                             size_t count,
                             struct KvikKept *kept);

/**
 * Lets go what is kept under a name, in RAM and on disk. `was_known` learns whether there was such a name.
 *
 * # Safety
 * `model` is an open handle, `id` a text, `was_known` null or a place.
 */
enum KvikStatus kvik_forget_prompt(const struct KvikModel *model, const char *id, bool *was_known);

/**
 * Tokens of a text.
 *
 * # Safety
 * `model` is an open handle, `prompt` a text, `tokens` null or a place.
 */
enum KvikStatus kvik_count_tokens(const struct KvikModel *model, const char *prompt, uint64_t *tokens);

/**
 * What a text would find in the cache now, and why not more. Computes and changes nothing.
 *
 * # Safety
 * `model` is an open handle, `prompt` a text, `explanation` null or a place.
 */
enum KvikStatus kvik_explain(const struct KvikModel *model,
                             const char *prompt,
                             struct KvikExplanation *explanation);

/**
 * What a text means to the model: `dimensions` numbers at `vector`, of length 1. If there is room for fewer, only
 * `dimensions` is written, and the status is `KVIK_STATUS_TOO_SMALL`.
 *
 * # Safety
 * `model` is an open handle, `input` a text, `vector` a place for `room` numbers, `dimensions` null or a place.
 */
enum KvikStatus kvik_embed(const struct KvikModel *model,
                           const char *input,
                           float *vector,
                           size_t room,
                           size_t *dimensions);

/**
 * Opens a GGUF file, or a directory as Hugging Face lays it out.
 *
 * # Safety
 * `path` and the directories of `options` are texts, `options` is null or options, `model` a place for a handle.
 */
enum KvikStatus kvik_open_file(const char *path,
                               const struct KvikOptions *options,
                               struct KvikModel **model);

/**
 * Opens a GGUF file in memory, which is copied.
 *
 * # Safety
 * `bytes` are `count` bytes; otherwise as `kvik_open_file`.
 */
enum KvikStatus kvik_open_bytes(const uint8_t *bytes,
                                size_t count,
                                const struct KvikOptions *options,
                                struct KvikModel **model);

/**
 * Opens a GGUF file inside an open file, which is mapped: `descriptor`, `offset` and `bytes` as a phone's asset manager
 * gives them; 0 bytes are those up to the end. The descriptor stays the caller's, who may close it after the call.
 *
 * # Safety
 * As `kvik_open_file`, and `descriptor` is an open file.
 */
enum KvikStatus kvik_open_part(int descriptor,
                               uint64_t offset,
                               uint64_t bytes,
                               const struct KvikOptions *options,
                               struct KvikModel **model);

/**
 * Cancels all answers, gives the disk up to two seconds for what was computed, and stops all threads. Null is no model,
 * and closing it does nothing.
 *
 * # Safety
 * `model` is null or a handle that was opened, not closed, and is used by no other thread.
 */
enum KvikStatus kvik_close(struct KvikModel *model);

/**
 * Why the last call on this thread that failed did, in words; empty where none did. Never null, and valid until another
 * call on this thread fails.
 */
const char *kvik_last_error(void);

/**
 * Gives memory back to the system, as much as `level`, one of `KvikMemoryPressure`, says: computed blocks first go to the
 * disk, for which they have 50 ms. `evicted_bytes` learns how many bytes of cached prefixes were evicted.
 *
 * # Safety
 * `model` is an open handle, `evicted_bytes` null or a place.
 */
enum KvikStatus kvik_on_memory_pressure(const struct KvikModel *model,
                                        uint32_t level,
                                        uint64_t *evicted_bytes);

/**
 * Gets ready to be killed: cancels all answers and waits up to 100 ms, and for the step that runs, until all that was
 * computed is on disk. `unwritten_blocks` learns what is not.
 *
 * # Safety
 * `model` is an open handle, `unwritten_blocks` null or a place.
 */
enum KvikStatus kvik_on_background(const struct KvikModel *model,
                                   uint64_t *unwritten_blocks);

/**
 * The engine's numbers after its last step.
 *
 * # Safety
 * `model` is an open handle, `stats` null or a place.
 */
enum KvikStatus kvik_stats(const struct KvikModel *model, struct KvikStats *stats);

/**
 * Why the last call on this thread that failed did, in words; empty where none did. Never null, and valid until another
 * call on this thread fails.
 */
const char *kvik_last_error(void);

/**
 * Opens a GGUF file, or a directory as Hugging Face lays it out.
 *
 * # Safety
 * `path` and the directories of `options` are texts, `options` is null or options, `model` a place for a handle.
 */
enum KvikStatus kvik_open_file(const char *path,
                               const struct KvikOptions *options,
                               struct KvikModel **model);

/**
 * Opens a GGUF file in memory, which is copied.
 *
 * # Safety
 * `bytes` are `count` bytes; otherwise as `kvik_open_file`.
 */
enum KvikStatus kvik_open_bytes(const uint8_t *bytes,
                                size_t count,
                                const struct KvikOptions *options,
                                struct KvikModel **model);

/**
 * Opens a GGUF file inside an open file, which is mapped: `descriptor`, `offset` and `bytes` as a phone's asset manager
 * gives them; 0 bytes are those up to the end. The descriptor stays the caller's, who may close it after the call.
 *
 * # Safety
 * As `kvik_open_file`, and `descriptor` is an open file.
 */
enum KvikStatus kvik_open_part(int descriptor,
                               uint64_t offset,
                               uint64_t bytes,
                               const struct KvikOptions *options,
                               struct KvikModel **model);

/**
 * Cancels all answers, gives the disk up to two seconds for what was computed, and stops all threads. Null is no model,
 * and closing it does nothing.
 *
 * # Safety
 * `model` is null or a handle that was opened, not closed, and is used by no other thread.
 */
enum KvikStatus kvik_close(struct KvikModel *model);

/**
 * Continues a text. Names of control tokens in it stand for these tokens: texts of users belong into messages.
 *
 * # Safety
 * `model` is an open handle, `prompt` a text, `options` null or options with texts to stop at, `report` null or a place
 * for a report; `on_piece` is null or may be called with `context` on this thread.
 */
enum KvikStatus kvik_generate(const struct KvikModel *model,
                              const char *prompt,
                              const struct KvikAnswerOptions *options,
                              KvikPieceCallback on_piece,
                              void *context,
                              struct KvikReport *report);

/**
 * Answers `count` messages, in the form of the model's chat template. Nothing in them is taken for a control token.
 *
 * # Safety
 * `messages` are `count` messages with texts; otherwise as `kvik_generate`.
 */
enum KvikStatus kvik_chat(const struct KvikModel *model,
                          const struct KvikMessage *messages,
                          size_t count,
                          const struct KvikAnswerOptions *options,
                          KvikPieceCallback on_piece,
                          void *context,
                          struct KvikReport *report);

/**
 * Says something in a conversation, a name or an id, and answers it. It begins with its first answer. Question and answer
 * are written down together; those of an answer that is cancelled are not.
 *
 * # Safety
 * `conversation` is a text, `messages` are `count` messages with texts; otherwise as `kvik_generate`.
 */
enum KvikStatus kvik_say(const struct KvikModel *model,
                         const char *conversation,
                         const struct KvikMessage *messages,
                         size_t count,
                         const struct KvikAnswerOptions *options,
                         KvikPieceCallback on_piece,
                         void *context,
                         struct KvikReport *report);

/**
 * All conversations, those that were changed last first: a JSON array of `{"id", "name", "created_s", "updated_s",
 * "messages"}`. `needed` learns how many bytes that takes; where `room` is less, `KVIK_STATUS_TOO_SMALL`.
 *
 * # Safety
 * `model` is an open handle, `json` null or a place for `room` bytes, `needed` null or a place.
 */
enum KvikStatus kvik_conversations(const struct KvikModel *model,
                                   char *json,
                                   size_t room,
                                   size_t *needed);

/**
 * What was said in a conversation: a JSON array of `{"role", "content", "tool_calls", "tool_call_id"}`, the last two where
 * there are any.
 *
 * # Safety
 * `conversation` is a text; otherwise as `kvik_conversations`.
 */
enum KvikStatus kvik_conversation_messages(const struct KvikModel *model,
                                           const char *conversation,
                                           char *json,
                                           size_t room,
                                           size_t *needed);

/**
 * The newest summary of a conversation; an empty text where there is none.
 *
 * # Safety
 * As `kvik_conversation_messages`.
 */
enum KvikStatus kvik_conversation_summary(const struct KvikModel *model,
                                          const char *conversation,
                                          char *summary,
                                          size_t room,
                                          size_t *needed);

/**
 * From now on the newest summary of a conversation says this, which its next turn is told.
 *
 * # Safety
 * `model` is an open handle, the others are texts.
 */
enum KvikStatus kvik_conversation_correct(const struct KvikModel *model,
                                          const char *conversation,
                                          const char *summary);

/**
 * Takes back the messages of a conversation from this index on, and what is remembered of them.
 *
 * # Safety
 * `model` is an open handle, `conversation` a text.
 */
enum KvikStatus kvik_conversation_take_back(const struct KvikModel *model,
                                            const char *conversation,
                                            size_t from);

/**
 * Gives a conversation another name.
 *
 * # Safety
 * `model` is an open handle, the others are texts.
 */
enum KvikStatus kvik_conversation_rename(const struct KvikModel *model,
                                         const char *conversation,
                                         const char *name);

/**
 * Deletes a conversation, and all that is remembered of it.
 *
 * # Safety
 * `model` is an open handle, `conversation` a text.
 */
enum KvikStatus kvik_conversation_delete(const struct KvikModel *model, const char *conversation);

/**
 * Computes messages with which chats begin, as far as they are not known, and keeps them under a name until they are
 * forgotten: in RAM, and on disk, where another process finds them. What the name stood for before is let go.
 *
 * # Safety
 * `model` is an open handle, `id` a text, `messages` are `count` messages with texts, `kept` is null or a place.
 */
enum KvikStatus kvik_keep_prompt(const struct KvikModel *model,
                                 const char *id,
                                 const struct KvikMessage *messages,
                                 size_t count,
                                 struct KvikKept *kept);

/**
 * Whether these messages are what is kept under a name, and how much of them need not be computed.
 *
 * # Safety
 * As `kvik_keep_prompt`.
 */
enum KvikStatus kvik_is_kept(const struct KvikModel *model,
                             const char *id,
                             const struct KvikMessage *messages,
                             size_t count,
                             struct KvikKept *kept);

/**
 * Lets go what is kept under a name, in RAM and on disk. `was_known` learns whether there was such a name.
 *
 * # Safety
 * `model` is an open handle, `id` a text, `was_known` null or a place.
 */
enum KvikStatus kvik_forget_prompt(const struct KvikModel *model, const char *id, bool *was_known);

/**
 * Tokens of a text.
 *
 * # Safety
 * `model` is an open handle, `prompt` a text, `tokens` null or a place.
 */
enum KvikStatus kvik_count_tokens(const struct KvikModel *model, const char *prompt, uint64_t *tokens);

/**
 * What a text would find in the cache now, and why not more. Computes and changes nothing.
 *
 * # Safety
 * `model` is an open handle, `prompt` a text, `explanation` null or a place.
 */
enum KvikStatus kvik_explain(const struct KvikModel *model,
                             const char *prompt,
                             struct KvikExplanation *explanation);

/**
 * What a text means to the model: `dimensions` numbers at `vector`, of length 1. If there is room for fewer, only
 * `dimensions` is written, and the status is `KVIK_STATUS_TOO_SMALL`.
 *
 * # Safety
 * `model` is an open handle, `input` a text, `vector` a place for `room` numbers, `dimensions` null or a place.
 */
enum KvikStatus kvik_embed(const struct KvikModel *model,
                           const char *input,
                           float *vector,
                           size_t room,
                           size_t *dimensions);

/**
 * Gives memory back to the system, as much as `level`, one of `KvikMemoryPressure`, says: computed blocks first go to the
 * disk, for which they have 50 ms. `evicted_bytes` learns how many bytes of cached prefixes were evicted.
 *
 * # Safety
 * `model` is an open handle, `evicted_bytes` null or a place.
 */
enum KvikStatus kvik_on_memory_pressure(const struct KvikModel *model,
                                        uint32_t level,
                                        uint64_t *evicted_bytes);

/**
 * Gets ready to be killed: cancels all answers and waits up to 100 ms, and for the step that runs, until all that was
 * computed is on disk. `unwritten_blocks` learns what is not.
 *
 * # Safety
 * `model` is an open handle, `unwritten_blocks` null or a place.
 */
enum KvikStatus kvik_on_background(const struct KvikModel *model,
                                   uint64_t *unwritten_blocks);

/**
 * The engine's numbers after its last step.
 *
 * # Safety
 * `model` is an open handle, `stats` null or a place.
 */
enum KvikStatus kvik_stats(const struct KvikModel *model, struct KvikStats *stats);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVIK_H */
