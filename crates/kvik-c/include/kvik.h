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
 * Value of `temperature` for the likeliest token at each position, without penalties; so is every negative number.
 */
#define KVIK_GREEDY -1.0

/**
 * Value of `top_k` that keeps all tokens.
 */
#define KVIK_KEEP_ALL 4294967295

/**
 * Status of a call; `kvik_last_error` has the reason of a failure.
 */
typedef enum KvikStatus {
  /**
   * The call succeeded.
   */
  KVIK_STATUS_OK = 0,
  /**
   * A pointer is null, a text is not UTF-8, or a number is out of its range.
   */
  KVIK_STATUS_INVALID_ARGUMENT = 1,
  /**
   * The model cannot be read or used.
   */
  KVIK_STATUS_MODEL = 2,
  /**
   * The memory or the sizes cannot be provided.
   */
  KVIK_STATUS_MEMORY = 3,
  /**
   * The directory on disk cannot be used.
   */
  KVIK_STATUS_DISK = 4,
  /**
   * The engine refused the request, or the request failed.
   */
  KVIK_STATUS_REQUEST = 5,
  /**
   * The buffer of the result is too small; the size it needs was written.
   */
  KVIK_STATUS_TOO_SMALL = 6,
  /**
   * An internal failure. Other calls are not affected.
   */
  KVIK_STATUS_INTERNAL = 7,
} KvikStatus;

/**
 * Kind of a piece of an answer.
 */
typedef enum KvikPieceKind {
  /**
   * More of the answer.
   */
  KVIK_PIECE_KIND_TEXT = 0,
  /**
   * More of the model's reasoning before the answer.
   */
  KVIK_PIECE_KIND_REASONING = 1,
  /**
   * A complete tool call: `{"id": "...", "name": "...", "arguments": "..."}`; the arguments are a text that holds JSON.
   */
  KVIK_PIECE_KIND_CALL = 2,
} KvikPieceKind;

/**
 * Reason why an answer ended.
 */
typedef enum KvikFinish {
  /**
   * The model ended it.
   */
  KVIK_FINISH_END = 0,
  /**
   * The next text would have been a stop text.
   */
  KVIK_FINISH_STOP = 1,
  /**
   * The maximum number of tokens is reached.
   */
  KVIK_FINISH_LENGTH = 2,
  /**
   * The answer was cancelled.
   */
  KVIK_FINISH_CANCELLED = 3,
  /**
   * The answer repeated itself, and `stop_loops` is set.
   */
  KVIK_FINISH_LOOP = 4,
} KvikFinish;

/**
 * Role of a message.
 */
typedef enum KvikRole {
  /**
   * Instructions of the program to the model.
   */
  KVIK_ROLE_SYSTEM = 0,
  /**
   * Input of the user.
   */
  KVIK_ROLE_USER = 1,
  /**
   * Output of the model.
   */
  KVIK_ROLE_ASSISTANT = 2,
  /**
   * Result of a tool call.
   */
  KVIK_ROLE_TOOL = 3,
} KvikRole;

/**
 * Amount of memory that the system requests.
 */
typedef enum KvikMemoryPressure {
  /**
   * Half of the cached prefixes, the least valuable ones, and all free memory.
   */
  KVIK_MEMORY_PRESSURE_MODERATE = 0,
  /**
   * Three quarters of the cached prefixes.
   */
  KVIK_MEMORY_PRESSURE_HIGH = 1,
  /**
   * All that is neither pinned nor in use.
   */
  KVIK_MEMORY_PRESSURE_CRITICAL = 2,
} KvikMemoryPressure;

/**
 * An open model; its fields are private.
 */
typedef struct KvikModel KvikModel;

/**
 * A change of the logit of a token.
 */
typedef struct KvikLogitBias {
  /**
   * The token, as `kvik_tokens` writes it.
   */
  uint32_t token;
  /**
   * Number that is added to its logit, at most 1e9; negative infinity forbids the token.
   */
  float bias;
} KvikLogitBias;

/**
 * Options of an answer. A field that is 0 or null has its default, and a null pointer has all defaults: the sampling that
 * the model's makers recommend, up to the end of the context.
 */
typedef struct KvikAnswerOptions {
  /**
   * Maximum tokens of the answer; 0 is the rest of the context.
   */
  uint64_t max_tokens;
  /**
   * Minimum tokens of the answer: before them the model cannot end it.
   */
  uint64_t min_tokens;
  /**
   * Sampling temperature; 0 is the model's (`kvik_sampling`), `KVIK_GREEDY` takes the likeliest token at each position.
   */
  float temperature;
  /**
   * Keeps the smallest set of tokens whose probability reaches this; 0 is the model's, 1 keeps all.
   */
  float top_p;
  /**
   * Keeps this many of the likeliest tokens; 0 is the model's, `KVIK_KEEP_ALL` keeps all.
   */
  uint32_t top_k;
  /**
   * Drops tokens below this share of the likeliest one's probability; 0 is the model's, a negative number drops none.
   */
  float min_p;
  /**
   * Divides the logits of tokens that occurred; 0 is the model's, 1 is off.
   */
  float repetition_penalty;
  /**
   * Seed of the sampler: the same seed gives the same text; 0 is a random one.
   */
  uint64_t seed;
  /**
   * `stop_count` texts; the answer ends before the first of these.
   */
  const char *const *stop;
  /**
   * Number of texts in `stop`.
   */
  size_t stop_count;
  /**
   * Tools that a chat may call, in OpenAI's format: a JSON array; null is none.
   */
  const char *tools;
  /**
   * `none`, `auto`, `required`, or the name of a tool; null is `auto`.
   */
  const char *tool_choice;
  /**
   * A JSON schema that the answer satisfies, or null. At most one of this and the next two is set.
   */
  const char *json_schema;
  /**
   * A regular expression that the answer matches, or null.
   */
  const char *regex;
  /**
   * A Lark grammar (of llguidance) that accepts the answer, or null.
   */
  const char *grammar;
  /**
   * The retention policy of a long prompt, as `keydiff:0.5` (docs/retention.md); null reads the whole prompt.
   */
  const char *retention;
  /**
   * Ends an answer that only repeats itself, as small models do.
   */
  bool stop_loops;
  /**
   * Switches reasoning before the answer to a chat on (1) or off (-1), for models that have it; 0 is the template's.
   */
  int32_t reasoning;
  /**
   * `logit_bias_count` changes of the logits of tokens.
   */
  const struct KvikLogitBias *logit_bias;
  /**
   * Number of changes in `logit_bias`.
   */
  size_t logit_bias_count;
} KvikAnswerOptions;

/**
 * Receives a piece of an answer: `bytes` bytes of whole characters in UTF-8, and a nul behind them, which are valid until
 * it returns. It is called on the thread that asked. Returning false cancels the answer.
 */
typedef bool (*KvikPieceCallback)(enum KvikPieceKind kind, const char *piece, size_t bytes, void *context);

/**
 * Cost of an answer.
 */
typedef struct KvikReport {
  /**
   * Reason for its end.
   */
  enum KvikFinish finish;
  /**
   * Tokens of the prompt.
   */
  uint64_t prompt_tokens;
  /**
   * Prompt tokens that came from the cache, including those from disk.
   */
  uint64_t cached_tokens;
  /**
   * Cached tokens that came from disk.
   */
  uint64_t disk_tokens;
  /**
   * Tokens of the answer.
   */
  uint64_t generated_tokens;
  /**
   * Why no more of the prompt came from the cache, as `first_seen`; empty if that is unknown.
   */
  char reason[32];
  /**
   * Seconds in the queue.
   */
  double queued_s;
  /**
   * Seconds from admission to the first token.
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
   * Text of the message.
   */
  const char *content;
  /**
   * Tool calls of the model, a JSON array of the objects of `KVIK_PIECE_KIND_CALL`; null is none.
   */
  const char *tool_calls;
  /**
   * Id of the call that a tool's result answers, or null.
   */
  const char *tool_call_id;
} KvikMessage;

/**
 * State of a pinned prompt.
 */
typedef struct KvikKept {
  /**
   * True if the name has a prompt.
   */
  bool is_known;
  /**
   * True if that is another prompt.
   */
  bool is_changed;
  /**
   * True if an answer would compute only its last token.
   */
  bool is_warm;
  /**
   * Tokens of the prompt.
   */
  uint64_t tokens;
  /**
   * Tokens of it in RAM.
   */
  uint64_t ram_tokens;
  /**
   * Tokens of it that would be read from disk.
   */
  uint64_t disk_tokens;
} KvikKept;

/**
 * Cached part of a text.
 */
typedef struct KvikExplanation {
  /**
   * Tokens of the text.
   */
  uint64_t prompt_tokens;
  /**
   * Tokens of it that would not be computed.
   */
  uint64_t known_tokens;
  /**
   * Tokens of it that would be read from disk.
   */
  uint64_t disk_tokens;
  /**
   * Why no more are cached, as `diverged`.
   */
  char reason[32];
} KvikExplanation;

/**
 * Options of a model. A field that is 0 or null has its default, which is in parentheses; a null pointer has all defaults.
 */
typedef struct KvikOptions {
  /**
   * Bytes of RAM for keys and values (half of the free memory, at most 8 GiB).
   */
  uint64_t kv_bytes;
  /**
   * Maximum tokens of a prompt and its answer together (the model's own, or what fits).
   */
  uint64_t context_tokens;
  /**
   * Compute threads (the number of fast cores).
   */
  uint32_t threads;
  /**
   * Maximum number of answers computed at the same time (4).
   */
  uint32_t parallel;
  /**
   * Directory in which computed blocks outlive the process (none).
   */
  const char *disk_dir;
  /**
   * Maximum bytes in that directory, never more than a tenth of the free space (2 GiB).
   */
  uint64_t disk_bytes_max;
  /**
   * Directory where conversations are stored, which must not be a cache directory (none).
   */
  const char *conversations_dir;
  /**
   * Fraction of time in which to compute, at most 1 (1): pauses keep a device cool, and answers do not change.
   */
  float time_share;
} KvikOptions;

/**
 * A setting of the sampler, and its source.
 */
typedef struct KvikSetting {
  /**
   * The value in force.
   */
  double value;
  /**
   * `file` (the model's files recommend it), `family NAME` (the makers of its family do), or `kvik` (nobody does).
   */
  char source[32];
} KvikSetting;

/**
 * The sampling of answers whose options set none.
 */
typedef struct KvikSampling {
  /**
   * Sampling temperature; 0 takes the likeliest token.
   */
  struct KvikSetting temperature;
  /**
   * Number of the likeliest tokens that are kept; 0 keeps all.
   */
  struct KvikSetting top_k;
  /**
   * Probability that the kept tokens have together.
   */
  struct KvikSetting top_p;
  /**
   * Share of the likeliest token's probability that kept tokens have.
   */
  struct KvikSetting min_p;
  /**
   * Divides the logits of tokens that occurred; 1 is off.
   */
  struct KvikSetting repetition_penalty;
  /**
   * Subtracted once from the logits of generated tokens; 0 is off.
   */
  struct KvikSetting presence_penalty;
  /**
   * Subtracted per occurrence from the logits of generated tokens; 0 is off.
   */
  struct KvikSetting frequency_penalty;
  /**
   * Number of tokens that penalties look back on: -1 for all, 0 for no penalties.
   */
  struct KvikSetting penalty_last_n;
} KvikSampling;

/**
 * Statistics of the engine after its last step. Without a disk, its numbers are 0.
 */
typedef struct KvikStats {
  /**
   * Number of answers being computed.
   */
  uint64_t running;
  /**
   * Number of waiting answers.
   */
  uint64_t waiting;
  /**
   * Bytes for keys and values.
   */
  uint64_t kv_bytes;
  /**
   * Bytes that hold cached prefixes.
   */
  uint64_t kv_cached_bytes;
  /**
   * Bytes that windows and states of layers take in addition, for running answers and cached prefixes.
   */
  uint64_t kv_withheld_bytes;
  /**
   * Free bytes.
   */
  uint64_t kv_free_bytes;
  /**
   * Prompt tokens so far, except those of summaries and next turns, which are computed behind answers.
   */
  uint64_t prompt_tokens;
  /**
   * Those of them that came from the cache.
   */
  uint64_t cached_tokens;
  /**
   * Tokens generated so far.
   */
  uint64_t generated_tokens;
  /**
   * Number of blocks on disk.
   */
  uint64_t disk_blocks;
  /**
   * Number of computed blocks that are still to be written.
   */
  uint64_t unwritten_blocks;
} KvikStats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Continues a text. Names of control tokens in it are parsed as these tokens, so users' texts belong in messages.
 *
 * # Safety
 * `model` is an open handle, `prompt` a text, `options` null or valid options, `report` null or writable; `on_piece` is
 * null or may be called with `context` on this thread.
 */
enum KvikStatus kvik_generate(const struct KvikModel *model,
                              const char *prompt,
                              const struct KvikAnswerOptions *options,
                              KvikPieceCallback on_piece,
                              void *context,
                              struct KvikReport *report);

/**
 * Answers `count` messages, rendered by the model's chat template. Nothing in them is parsed as a control token.
 *
 * # Safety
 * `messages` are `count` valid messages; otherwise as `kvik_generate`.
 */
enum KvikStatus kvik_chat(const struct KvikModel *model,
                          const struct KvikMessage *messages,
                          size_t count,
                          const struct KvikAnswerOptions *options,
                          KvikPieceCallback on_piece,
                          void *context,
                          struct KvikReport *report);

/**
 * Sends messages in a conversation, by its name or id, and answers them; its first answer creates it. Question and answer
 * are stored together; a cancelled answer stores nothing.
 *
 * # Safety
 * `conversation` is a text, `messages` are `count` valid messages; otherwise as `kvik_generate`.
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
 * Writes whether conversations are stored on the disk; if not, they end with the model: without `conversations_dir`,
 * or because another process stores its conversations there.
 *
 * # Safety
 * `model` is an open handle, `stored` null or writable.
 */
enum KvikStatus kvik_conversations_are_stored(const struct KvikModel *model,
                                              bool *stored);

/**
 * Writes all conversations, the most recently changed first: a JSON array of `{"id", "name", "created_s", "updated_s",
 * "messages"}`, and to `needed` its size in bytes. If `room` is smaller, the status is `KVIK_STATUS_TOO_SMALL`.
 *
 * # Safety
 * `model` is an open handle, `json` null or a buffer of `room` bytes, `needed` null or writable.
 */
enum KvikStatus kvik_conversations(const struct KvikModel *model,
                                   char *json,
                                   size_t room,
                                   size_t *needed);

/**
 * Writes the messages of a conversation: a JSON array of `{"role", "content", "tool_calls", "tool_call_id"}`, the last two
 * if there are any.
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
 * Writes the newest summary of a conversation; an empty text if there is none.
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
 * Replaces the text of a conversation's newest summary; its next turn reads the new text.
 *
 * # Safety
 * `model` is an open handle, the others are texts.
 */
enum KvikStatus kvik_conversation_correct(const struct KvikModel *model,
                                          const char *conversation,
                                          const char *summary);

/**
 * Removes the messages of a conversation from the index `from` on, and the summaries that cover any of them.
 *
 * # Safety
 * `model` is an open handle, `conversation` a text.
 */
enum KvikStatus kvik_conversation_take_back(const struct KvikModel *model,
                                            const char *conversation,
                                            size_t from);

/**
 * Renames a conversation.
 *
 * # Safety
 * `model` is an open handle, the others are texts.
 */
enum KvikStatus kvik_conversation_rename(const struct KvikModel *model,
                                         const char *conversation,
                                         const char *name);

/**
 * Deletes a conversation and its summaries.
 *
 * # Safety
 * `model` is an open handle, `conversation` a text.
 */
enum KvikStatus kvik_conversation_delete(const struct KvikModel *model, const char *conversation);

/**
 * Computes the common first messages of future chats, unless they are cached, and pins them under a name until they are
 * forgotten: in RAM, and on disk, where another process finds them. The previous prompt of the name is unpinned.
 * `options` are those of the chats, or null: a template may write tools and reasoning before the messages.
 *
 * # Safety
 * `model` is an open handle, `id` a text, `messages` are `count` valid messages, `options` is null or valid options,
 * `kept` is null or writable.
 */
enum KvikStatus kvik_keep_prompt(const struct KvikModel *model,
                                 const char *id,
                                 const struct KvikMessage *messages,
                                 size_t count,
                                 const struct KvikAnswerOptions *options,
                                 struct KvikKept *kept);

/**
 * Compares messages with those that are pinned under a name, and reports how much of them is cached.
 *
 * # Safety
 * As `kvik_keep_prompt`.
 */
enum KvikStatus kvik_is_kept(const struct KvikModel *model,
                             const char *id,
                             const struct KvikMessage *messages,
                             size_t count,
                             const struct KvikAnswerOptions *options,
                             struct KvikKept *kept);

/**
 * Unpins the prompt of a name, in RAM and on disk, and writes to `was_known` whether the name existed.
 *
 * # Safety
 * `model` is an open handle, `id` a text, `was_known` null or writable.
 */
enum KvikStatus kvik_forget_prompt(const struct KvikModel *model, const char *id, bool *was_known);

/**
 * Number of tokens of a text.
 *
 * # Safety
 * `model` is an open handle, `prompt` a text, `tokens` null or writable.
 */
enum KvikStatus kvik_count_tokens(const struct KvikModel *model, const char *prompt, uint64_t *tokens);

/**
 * Tokenizes a text on its own, and writes `count` tokens to `tokens`. Names of control tokens in it are parsed as these
 * tokens. If `room` is smaller, only `count` is written, and the status is `KVIK_STATUS_TOO_SMALL`.
 *
 * # Safety
 * `model` is an open handle, `input` a text, `tokens` has room for `room` numbers, `count` is null or writable.
 */
enum KvikStatus kvik_tokens(const struct KvikModel *model,
                            const char *input,
                            uint32_t *tokens,
                            size_t room,
                            size_t *count);

/**
 * Reports what a text would find in the cache now, and why not more. Computes and changes nothing.
 *
 * # Safety
 * `model` is an open handle, `prompt` a text, `explanation` null or writable.
 */
enum KvikStatus kvik_explain(const struct KvikModel *model,
                             const char *prompt,
                             struct KvikExplanation *explanation);

/**
 * Writes the embedding of a text to `vector`: `dimensions` numbers, of length 1. If `room` is smaller, only `dimensions`
 * is written, and the status is `KVIK_STATUS_TOO_SMALL`.
 *
 * # Safety
 * `model` is an open handle, `input` a text, `vector` has room for `room` numbers, `dimensions` is null or writable.
 */
enum KvikStatus kvik_embed(const struct KvikModel *model,
                           const char *input,
                           float *vector,
                           size_t room,
                           size_t *dimensions);

/**
 * Opens a GGUF file, or a directory in Hugging Face's layout.
 *
 * # Safety
 * `path` and the directories of `options` are texts, `options` is null or valid options, `model` is writable.
 */
enum KvikStatus kvik_open_file(const char *path, const struct KvikOptions *options, struct KvikModel **model);

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
 * provides them; with 0 bytes the part extends to the end of the file. The caller keeps the descriptor and may close it
 * after the call.
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
 * Cancels all answers, waits up to two seconds until computed blocks are on disk, and stops all threads. Closing null
 * does nothing.
 *
 * # Safety
 * `model` is null or a handle that was opened, not closed, and is used by no other thread.
 */
enum KvikStatus kvik_close(struct KvikModel *model);

/**
 * Writes the sampling of answers whose options set neither it nor `reasoning`: what the model's makers recommend, else
 * kvik's defaults.
 *
 * # Safety
 * `model` is an open handle, `sampling` writable.
 */
enum KvikStatus kvik_sampling(const struct KvikModel *model,
                              struct KvikSampling *sampling);

/**
 * Reason of the last failure on this thread, as a text; empty if no call has failed. Never null, and valid until another
 * call on this thread fails.
 */
const char *kvik_last_error(void);

/**
 * Releases memory to the system, as much as `level`, one of `KvikMemoryPressure`, requests: computed blocks first get
 * 50 ms to reach the disk. Writes to `evicted_bytes` how many bytes of cached prefixes were evicted.
 *
 * # Safety
 * `model` is an open handle, `evicted_bytes` null or writable.
 */
enum KvikStatus kvik_on_memory_pressure(const struct KvikModel *model,
                                        uint32_t level,
                                        uint64_t *evicted_bytes);

/**
 * Prepares for the end of the process: cancels all answers and waits until all computed blocks are on disk, at most
 * 100 ms and the running step. Writes to `unwritten_blocks` how many are not.
 *
 * # Safety
 * `model` is an open handle, `unwritten_blocks` null or writable.
 */
enum KvikStatus kvik_on_background(const struct KvikModel *model,
                                   uint64_t *unwritten_blocks);

/**
 * Writes the statistics of the engine after its last step.
 *
 * # Safety
 * `model` is an open handle, `stats` null or writable.
 */
enum KvikStatus kvik_stats(const struct KvikModel *model, struct KvikStats *stats);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVIK_H */
