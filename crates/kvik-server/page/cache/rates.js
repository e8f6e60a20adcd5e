// From totals since the start to what happens now: pure functions of samples of `/v1/stats`.

/** The samples with one for each second: those between two that were read further apart lie on a line between them. */
export function eachSecond(samples, most) {
  const all = samples.flatMap((now, at) => [...between(samples[at - 1], now, most), now]);
  return all.slice(-most);
}

function between(before, now, most) {
  if (!now || !before || now.started !== before.started) return [];
  const seconds = Math.round(now.time - before.time);
  const count = Math.min(seconds, most) - 1;
  return Array.from({ length: Math.max(0, count) }, (_, at) => mixed(before, now, (at + 1) / (count + 1)));
}

/** What was between two samples: totals grew evenly, all else was as it had been. */
function mixed(before, now, share) {
  const grown = (from, to) => from + (to - from) * share;
  const tokens = Object.fromEntries(["prompt", "cached", "computed", "generated"].map((kind) => [kind, grown(before.tokens[kind], now.tokens[kind])]));
  return { ...before, time: grown(before.time, now.time), tokens };
}

/** Rates of each second between two samples; null where there is none: a gap, a restart, the first sample. */
export function rates(samples) {
  return samples.map((now, at) => {
    const before = samples[at - 1];
    if (!now || !before || now.started !== before.started || now.time <= before.time) return null;
    const seconds = now.time - before.time;
    const reused = now.tokens.cached - before.tokens.cached;
    const computed = now.tokens.computed - before.tokens.computed;
    return {
      // Prompts that were given up before they were looked up are in neither.
      read: reused + computed,
      reused,
      perSecond: {
        reused: reused / seconds,
        computed: computed / seconds,
        generated: (now.tokens.generated - before.tokens.generated) / seconds,
      },
    };
  });
}

/** The share of prompt tokens that was reused in the last `seconds` samples before each; null where none were read. */
export function hitRates(differences, seconds = 30) {
  let read = 0;
  let reused = 0;
  const add = (difference, sign) => {
    read += sign * (difference?.read ?? 0);
    reused += sign * (difference?.reused ?? 0);
  };
  return differences.map((difference, at) => {
    add(difference, 1);
    if (at >= seconds) add(differences[at - seconds], -1);
    return difference && read > 0 ? reused / read : null;
  });
}

/** The curves: `{title, unit, top, lines: [{name, kind, values}]}`; without `queue` and `kv` for a tenant. */
export function curves(samples) {
  const differences = rates(samples);
  const tokens = (kind) => differences.map((difference) => difference?.perSecond[kind] ?? null);
  const of = (read) => samples.map((sample) => (sample ? read(sample) : null));
  const shown = [
    {
      title: "Tokens per second",
      unit: "rate",
      lines: [
        { name: "Reused", kind: "ram", values: tokens("reused") },
        { name: "Prefill", kind: "computed", values: tokens("computed") },
        { name: "Generated", kind: "generated", values: tokens("generated") },
      ],
    },
    {
      title: "Hit rate, last 30 s",
      unit: "share",
      top: 1,
      lines: [{ name: "Of prompts", kind: "ram", values: hitRates(differences) }],
    },
  ];
  const last = samples.findLast(Boolean);
  if (last?.kv) shown.push(...tierCurves(last.kv, of));
  if (last?.queue) {
    const lines = [
      { name: "Running", kind: "ram", values: of((sample) => sample.queue?.running ?? null) },
      { name: "Waiting", kind: "computed", values: of((sample) => sample.queue?.waiting ?? null) },
    ];
    shown.push({ title: `Requests, at most ${last.queue.parallel} at once`, unit: "count", top: 1, lines });
  }
  return shown;
}

function tierCurves(kv, of) {
  const tier = (name, title, kind) => ({
    title,
    unit: "bytes",
    // Against its capacity where it comes near; a curve at the bottom of a large tier would say nothing.
    capacity: kv[name].capacity_bytes,
    lines: [
      { name: "Used", kind, values: of((sample) => sample.kv?.[name]?.bytes ?? null) },
      name === "ram" && {
        name: "Pinned",
        kind: "computed",
        values: of((sample) => sample.kv?.ram.pinned_bytes ?? null),
      },
    ].filter(Boolean),
  });
  return [tier("ram", "KV in RAM", "ram"), kv.disk && tier("disk", "KV on disk", "disk")].filter(Boolean);
}
