// What the tabs of one browser tell each other: which conversation was changed.

/** `{changed(id), deleted(id)}`; calls `onChange({id, deleted})` when another tab changed a conversation. */
export function createTabs(onChange) {
  const channel = new BroadcastChannel("kvik");
  channel.addEventListener("message", ({ data }) => onChange(data));
  return {
    changed: (id) => channel.postMessage({ id, deleted: false }),
    deleted: (id) => channel.postMessage({ id, deleted: true }),
  };
}
