// The versions of a conversation. An edited question, or an answer that is asked for again, begins another conversation
// at the server, which shares with the first one all messages before. Its metadata has the way there from the first one,
// so that nothing is lost when a conversation on that way is deleted: "conv_a:2 conv_b:5" left `conv_a` after its second
// message and `conv_b` after its fifth, system messages not counted.
import { leadingSystems } from "./state.js";

const WAY = "version_of";
/** When a version was begun, in milliseconds: two of the same second are told apart. */
const BEGUN = "version_begun";
/** What the server keeps of one text of the metadata. */
const WAY_MAX = 512;
const STEP = /^(conv_[0-9a-f]{1,32}):(\d{1,6})$/;

/** The metadata of a version that leaves the conversation `item` after `count` messages. */
export function versionMetadata(item, count) {
  const way = wayOf(item);
  // Who leaves before a conversation on the way was reached never was in it.
  const last = way.findIndex(({ until }) => until >= count);
  const steps = way.slice(0, last + 1).map(({ id, until }, at) => `${id}:${at === last ? count : until}`);
  while (steps.join(" ").length > WAY_MAX) steps.shift();
  return { [WAY]: steps.join(" "), [BEGUN]: String(Date.now()) };
}

/** The conversations that are versions of one with it, itself included. */
export function familyOf(items, id) {
  const root = rootOf(items.find((item) => item.id === id) ?? { id });
  return items.filter((item) => rootOf(item) === root);
}

/** The id of the conversation of which this one and all others of its family are versions. */
export const rootOf = (item) => wayOf(item)[0].id;

/**
 * The messages of a conversation that have versions: `{at, position, ids}`, `at` without system messages, `ids` with the
 * conversation that was changed last for each version, `position` its own among them.
 */
function versionsOf(items, id) {
  const family = familyOf(items, id);
  const own = family.find((item) => item.id === id);
  if (!own || family.length < 2) return [];
  const places = new Set(family.filter((item) => item !== own).map((item) => shared(own, item)));
  return [...places].sort((a, b) => a - b).map((at) => versionsAt(family, own, at));
}

/** The versions by the index of the message that has them, and those of the message that is still to come. */
export function versionsIn(items, { id, messages }) {
  const systems = leadingSystems(messages).length;
  const all = versionsOf(items, id).map((versions) => ({ ...versions, index: versions.at + systems }));
  return { said: all.filter(({ index }) => index < messages.length), coming: all.find(({ index }) => index >= messages.length) ?? null };
}

function versionsAt(family, own, at) {
  const versions = [];
  for (const item of family.filter((other) => shared(own, other) >= at)) {
    const same = versions.find(([first]) => shared(first, item) > at);
    if (same) same.push(item);
    else versions.push([item]);
  }
  const oldest = (version) => version.reduce((a, b) => (byAge(a, b) <= 0 ? a : b));
  versions.sort((a, b) => byAge(oldest(a), oldest(b)));
  return { at, position: versions.findIndex((version) => version.includes(own)), ids: versions.map(([newest]) => newest.id) };
}

/** Those of one second: a version comes behind the conversation that it left, and versions in the order of their beginning. */
function byAge(a, b) {
  return a.created - b.created || wayOf(a).length - wayOf(b).length || begunOf(a) - begunOf(b) || (a.id < b.id ? -1 : 1);
}

const begunOf = ({ metadata }) => Number(metadata?.[BEGUN]) || 0;

/** How many messages two conversations of a family share. */
function shared(one, other) {
  if (one === other) return Infinity;
  const [a, b] = [wayOf(one), wayOf(other)];
  let at = 0;
  while (a[at].until === b[at].until && a[at].until !== Infinity && a[at + 1].id === b[at + 1].id) at += 1;
  return Math.min(a[at].until, b[at].until);
}

/** `[{id, until}]` from the first conversation to this one, which is not left. */
function wayOf({ id, metadata }) {
  const steps = (metadata?.[WAY] ?? "").split(" ").map((step) => STEP.exec(step));
  // Another program may keep something else under this name.
  const known = steps.every(Boolean) ? steps.map(([, of, until]) => ({ id: of, until: Number(until) })) : [];
  return [...known, { id, until: Infinity }];
}
