// Conversations: messages, answers as they come, editing and asking again.

import * as api from "./api.js";
import * as store from "./store.js";
import { show as showMarkdown } from "./markdown.js";

const $ = (id) => document.getElementById(id);
let current = store.conversations[0] ?? store.create();
/// Stops the answer under way.
let stopping = null;
let hooks = {};

/// What a screen reader is told.
const say = (text) => { $("status").textContent = text; };

function button(text, label, action) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", action);
  return made;
}

function problem(text) {
  $("problem").hidden = !text;
  $("problem").textContent = text ?? "";
}

function keep() {
  if (!store.save()) problem("The browser has no more room: export conversations and remove some.");
}

// --- the list of conversations

function drawList() {
  $("list").replaceChildren(...store.conversations.map((conversation) => {
    const entry = document.createElement("li");
    const title = conversation.title || "New conversation";
    const open = button(title, null, () => { select(conversation); hooks.closeMenu(); });
    open.className = "open";
    open.title = title;
    if (conversation === current) {
      entry.className = "current";
      open.setAttribute("aria-current", "true");
    }
    const remove = button("✕", "Delete conversation: " + title, () => {
      if (conversation.messages.length && !confirm("Delete “" + title + "”?")) return;
      store.remove(conversation);
      if (conversation === current) select(store.conversations[0] ?? store.create());
      else drawList();
      $("new").focus();
    });
    remove.classList.add("icon");
    entry.append(open, remove);
    return entry;
  }));
}

function select(conversation) {
  stopping?.abort();
  current = conversation;
  problem();
  drawList();
  drawMessages();
  $("prompt").focus();
}

// --- messages

function drawMessages() {
  const list = $("messages");
  list.replaceChildren(...current.messages.map(drawMessage));
  if (!current.messages.length) {
    const empty = document.createElement("li");
    empty.className = "empty";
    empty.textContent = "Ask something. What you write goes to this server and nowhere else.";
    list.append(empty);
  }
  list.scrollTop = list.scrollHeight;
}

function drawMessage(message) {
  const entry = document.createElement("li");
  entry.className = "message " + message.role;
  const who = document.createElement("div");
  who.className = "who";
  who.textContent = message.role === "user" ? "You" : "Answer";
  const body = document.createElement("div");
  body.className = "body";
  const acts = document.createElement("div");
  acts.className = "acts";
  if (message.role === "user") {
    body.textContent = message.content;
    acts.append(button("Edit", "Edit this message", () => edit(entry, message)));
  } else {
    showMarkdown(body, message.content);
    acts.append(
      button("Copy", "Copy this answer", async (event) => {
        const pressed = event.target;
        try {
          await navigator.clipboard.writeText(message.content);
          pressed.textContent = "Copied";
        } catch {
          pressed.textContent = "Not copied";
        }
        setTimeout(() => { pressed.textContent = "Copy"; }, 1500);
      }),
      button("Retry", "Retry this answer", () => retry(message)),
    );
    const note = document.createElement("span");
    note.className = "quiet";
    note.textContent = message.note;
    acts.append(note);
  }
  entry.append(who, body, acts);
  return entry;
}

/// Puts a field in a message's place; what follows the message goes when it is sent anew.
function edit(entry, message) {
  const form = document.createElement("form");
  form.className = "edit";
  const field = document.createElement("textarea");
  field.setAttribute("aria-label", "Edited message");
  field.value = message.content;
  field.rows = Math.min(12, message.content.split("\n").length + 1);
  const row = document.createElement("div");
  row.className = "row";
  const send = button("Send", "Send the edited message", () => {});
  send.type = "submit";
  send.className = "main";
  const back = () => {
    const drawn = drawMessage(message);
    wrapper.replaceWith(drawn);
    drawn.querySelector("button").focus();
  };
  row.append(send, button("Cancel", "Cancel editing", back));
  form.append(field, row);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = field.value.trim();
    if (!text) return;
    stopping?.abort();
    current.messages.length = current.messages.indexOf(message);
    ask(text);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    } else if (event.key === "Escape") {
      event.stopPropagation();
      back();
    }
  });
  const wrapper = document.createElement("li");
  wrapper.className = "message";
  wrapper.append(form);
  entry.replaceWith(wrapper);
  field.focus();
}

function retry(message) {
  stopping?.abort();
  current.messages.length = current.messages.indexOf(message);
  answer();
}

function ask(text) {
  current.messages.push({ role: "user", content: text, note: "" });
  if (current.messages.length === 1) current.title = text.replace(/\s+/g, " ").slice(0, 80);
  answer();
}

/// The request's fields that the settings give.
function sampling() {
  const body = {};
  for (const name of ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"]) {
    if (store.settings[name] !== "") body[name] = Number(store.settings[name]);
  }
  if (store.settings.stop) body.stop = store.settings.stop;
  return body;
}

/// Has the conversation's next answer written.
async function answer() {
  const conversation = current;
  // The most recent one comes first.
  store.conversations.splice(store.conversations.indexOf(conversation), 1);
  store.conversations.unshift(conversation);
  conversation.changed = Date.now();
  const system = store.settings.system.trim();
  const messages = conversation.messages.map(({ role, content }) => ({ role, content }));
  if (system) messages.unshift({ role: "system", content: system });
  const reply = { role: "assistant", content: "", note: "" };
  conversation.messages.push(reply);
  keep();
  problem();
  drawList();
  drawMessages();
  const entry = $("messages").lastElementChild;
  const body = entry.querySelector(".body");
  entry.classList.add("writing");
  const stop = new AbortController();
  stopping = stop;
  busy(true);
  say("Answering");

  let waiting = false;
  const draw = () => {
    waiting = false;
    if (!body.isConnected) return;
    const list = $("messages");
    // It follows the text unless its reader has scrolled back.
    const follows = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
    showMarkdown(body, reply.content);
    if (follows) list.scrollTo({ top: list.scrollHeight, behavior: "instant" });
  };
  const began = performance.now();
  let first = 0, failure = null, result = null;
  try {
    result = await api.chat({ ...sampling(), messages }, stop.signal, (text) => {
      first ||= performance.now();
      reply.content += text;
      if (!waiting) {
        waiting = true;
        // Not by frames: a page that is not looked at has none.
        setTimeout(draw, 30);
      }
    });
  } catch (error) {
    failure = error;
  }
  const stopped = failure?.name === "AbortError";
  reply.note = note(result, first - began, performance.now() - first, stopped);
  if (failure && !stopped && !reply.content) {
    conversation.messages.splice(conversation.messages.indexOf(reply), 1);
  }
  keep();
  if (stopping === stop) {
    stopping = null;
    busy(false);
  }
  if (conversation !== current || !entry.isConnected) return;
  if (failure && !stopped) {
    problem(failure.message);
    if (failure.status === 401) hooks.needsKey();
  }
  if (conversation.messages.includes(reply)) {
    const drawn = drawMessage(reply);
    entry.replaceWith(drawn);
  } else {
    entry.remove();
  }
  const list = $("messages");
  if (list.scrollHeight - list.scrollTop - list.clientHeight < 160) list.scrollTop = list.scrollHeight;
  say(stopped ? "Stopped" : failure ? "" : "Answer: " + reply.content);
}

/// What an answer took, in a line.
function note(result, firstMs, restMs, stopped) {
  if (stopped) return "stopped";
  const usage = result?.usage;
  if (!usage) return "";
  const tokens = usage.completion_tokens;
  const parts = [tokens + (tokens === 1 ? " token" : " tokens")];
  if (firstMs > 0) parts.push("first after " + Math.round(firstMs) + " ms");
  if (tokens > 1 && restMs > 0) parts.push(((tokens - 1) / restMs * 1000).toFixed(0) + " a second");
  const cached = usage.prompt_tokens_details?.cached_tokens;
  parts.push("prompt " + usage.prompt_tokens + (cached ? ", " + cached + " of it cached" : ""));
  if (result.reason === "length") parts.push("cut off at its most tokens");
  return parts.join(" · ");
}

/// Whether an answer is being written.
function busy(is) {
  $("send").hidden = is;
  $("stop").hidden = !is;
}

// --- the form

function grow() {
  const field = $("prompt");
  field.style.height = "auto";
  field.style.height = field.scrollHeight + 2 + "px";
}

function readSettings() {
  for (const field of $("settings").querySelectorAll("[name]")) {
    if (field.value !== "" && !field.validity.valid) continue;
    store.settings[field.name] = field.value;
  }
  keep();
}

function writeSettings() {
  for (const field of $("settings").querySelectorAll("[name]")) field.value = store.settings[field.name] ?? "";
}

/// Begins: draws what is stored and listens.
export function begin(given) {
  hooks = given;
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = $("prompt").value.trim();
    if (!text || stopping) return;
    $("prompt").value = "";
    grow();
    ask(text);
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("composer").requestSubmit();
    }
  });
  $("prompt").addEventListener("input", grow);
  $("stop").addEventListener("click", () => { stopping?.abort(); $("prompt").focus(); });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && stopping && !document.querySelector("dialog[open]")) stopping.abort();
  });
  $("settings").addEventListener("change", readSettings);
  $("defaults").addEventListener("click", () => {
    Object.assign(store.settings, store.DEFAULTS);
    writeSettings();
    keep();
    say("Settings are the defaults");
  });
  $("new").addEventListener("click", () => {
    select(store.conversations.find((c) => !c.messages.length) ?? store.create());
    hooks.closeMenu();
  });
  $("export").addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([store.exported()], { type: "application/json" }));
    link.download = "dunlin-conversations.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", async (event) => {
    const file = event.target.files[0];
    if (!file) return;
    try {
      const count = store.imported(await file.text());
      select(store.conversations[0] ?? current);
      say(count + (count === 1 ? " conversation" : " conversations") + " imported");
    } catch (error) {
      problem("The file cannot be used: " + error.message);
    }
    event.target.value = "";
  });
  writeSettings();
  drawList();
  drawMessages();
}
