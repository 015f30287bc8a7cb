// Conversations and settings, kept in this browser alone.

const CONVERSATIONS = "dunlin.conversations", SETTINGS = "dunlin.settings";

export const DEFAULTS = {
  system: "", temperature: "0.8", top_p: "0.95", top_k: "40", min_p: "0.05",
  repetition_penalty: "1.1", max_tokens: "", seed: "", stop: "",
};

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/// Only what a conversation may hold, as it should be; null for what is none.
function checked(given) {
  if (!given || !Array.isArray(given.messages)) return null;
  const text = (value) => (typeof value === "string" ? value : "");
  const messages = given.messages
    .filter((m) => m && ["user", "assistant"].includes(m.role) && typeof m.content === "string")
    .map((m) => ({ role: m.role, content: m.content, note: text(m.note) }));
  return {
    id: text(given.id) || crypto.randomUUID?.() || String(Math.random()).slice(2),
    title: text(given.title).slice(0, 200),
    changed: Number.isFinite(given.changed) ? given.changed : Date.now(),
    messages,
  };
}

export const conversations = [read(CONVERSATIONS, [])].flat().map(checked).filter(Boolean);
export const settings = { ...DEFAULTS, ...read(SETTINGS, {}) };

export function create() {
  const made = checked({ messages: [] });
  conversations.unshift(made);
  return made;
}

/// Whether it could be saved: browsers have limits.
export function save() {
  try {
    const worth = conversations.filter((c) => c.messages.length);
    localStorage.setItem(CONVERSATIONS, JSON.stringify(worth));
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
    return true;
  } catch {
    return false;
  }
}

export function remove(conversation) {
  conversations.splice(conversations.indexOf(conversation), 1);
  save();
}

export const exported = () => JSON.stringify({
  dunlin: 1, conversations: conversations.filter((c) => c.messages.length),
}, null, 1);

/// Adds the conversations of a file; how many they were.
export function imported(text) {
  const given = JSON.parse(text);
  const list = Array.isArray(given) ? given : given?.conversations;
  if (!Array.isArray(list)) throw new Error("The file has no conversations.");
  const found = list.map(checked).filter((c) => c?.messages.length);
  for (const conversation of found) {
    const known = conversations.findIndex((c) => c.id === conversation.id);
    if (known >= 0) conversations[known] = conversation;
    else conversations.push(conversation);
  }
  conversations.sort((a, b) => b.changed - a.changed);
  save();
  return found.length;
}
