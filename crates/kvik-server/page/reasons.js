// The cache's reasons (`kvik.cache.reason`, docs/http.md) in words.

const SENTENCES = {
  complete: "The whole prompt was in the cache. Only its last token was computed, because the answer begins with it.",
  first_seen: "The rest of the prompt was never seen before.",
  diverged: "From here on the prompt differs from every prompt that is known.",
  window_dropped: "The rest is in the cache, but not what layers with a window need to go on behind it.",
  no_state_kept: "The rest is in the cache, but no state of the recurrent layers was kept behind it.",
  evicted: "The rest was in the cache and was evicted to make room.",
  expired: "The rest was in the cache and outlived the time it was to be kept.",
  other_model: "The rest was computed with another model.",
  other_kv_format: "The rest was computed with another KV format.",
  other_tenant_or_private: "The rest is not shared: this request, or the one that computed it, is private.",
  below_minimum: "Too few tokens were in the cache to be worth reusing.",
  still_computing: "The rest is being computed by a request that runs now.",
  retained: "The request drops positions and computed the rest itself: to see its attention, or behind a compressed prefix.",
  pooled: "An embedding of all tokens needs what is not cached.",
  load_failed: "The rest is on disk and could not be read.",
  remote_down: "The store that nodes share might have the rest, and does not answer.",
  remote_failed: "The rest is in the store that nodes share, and did not come in time or whole.",
  remote_slower: "The rest is in the store that nodes share, and computing it took less time than fetching it would have.",
  recompute_was_cheaper: "The rest is on disk, and computing it took less time than reading it would have.",
};

/** Why no more of a prompt was reused; `cache` is `kvik.cache` of an answer or of an explanation. */
export function reasonSentence(cache) {
  const sentence = SENTENCES[cache.reason] ?? `The server says: ${cache.reason}.`;
  if (cache.reason !== "evicted" || !cache.evicted) return sentence;
  const { seconds_ago: seconds, policy } = cache.evicted;
  return `The rest was in the cache and was evicted ${Math.round(seconds)} s ago to make room (policy ${policy}).`;
}
