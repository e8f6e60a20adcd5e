// Repeats a task while somebody looks, as often as the server's limit of requests allows.

/**
 * Runs `task(signal)` now and at least `leastMs` after each end of it, while the page is visible; `pace` says how much
 * later. Returns the function that ends it.
 */
export function watch(task, leastMs, pace) {
  const ended = new AbortController();
  let timer = 0;
  let running = false;
  const turn = async () => {
    if (running || document.hidden || ended.signal.aborted) return;
    running = true;
    const before = pace.sent();
    await task(ended.signal);
    running = false;
    if (!ended.signal.aborted) timer = setTimeout(turn, pace.pauseMs(pace.sent() - before, leastMs));
  };
  const onVisibility = () => {
    clearTimeout(timer);
    turn();
  };
  document.addEventListener("visibilitychange", onVisibility, { signal: ended.signal });
  turn();
  return () => {
    clearTimeout(timer);
    ended.abort();
  };
}
