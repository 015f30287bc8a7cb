// The page: which view is shown, the theme, the key; chat.js and live.js do the rest.

import * as api from "./api.js";
import { begin as beginChat } from "./chat.js";
import { show as showLive } from "./live.js";

const $ = (id) => document.getElementById(id);

// The theme goes from the system's to the other one, and back over both.
const THEMES = { "": "as the system", light: "light", dark: "dark" };
const SIGNS = { "": "◐", light: "☀", dark: "☾" };
function theme(name) {
  if (!(name in THEMES)) name = "";
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  $("theme").textContent = SIGNS[name];
  $("theme").title = "Theme: " + THEMES[name];
  $("theme").setAttribute("aria-label", "Theme: " + THEMES[name]);
  try { localStorage.setItem("dunlin.theme", name); } catch { /* it holds for this visit */ }
}
$("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  theme(names[(names.indexOf(document.documentElement.dataset.theme ?? "") + 1) % names.length]);
});
theme(localStorage.getItem("dunlin.theme") ?? "");

function view(name) {
  for (const other of ["chat", "live"]) {
    $(other + "-view").hidden = other !== name;
    $("show-" + other).setAttribute("aria-pressed", String(other === name));
  }
  showLive(name === "live");
  $("menu").disabled = name === "live";
  menu(false);
}
$("show-chat").addEventListener("click", () => { history.replaceState(null, "", "#"); view("chat"); });
$("show-live").addEventListener("click", () => { history.replaceState(null, "", "#live"); view("live"); });

/// The list of conversations, where the window is too narrow to show it always.
function menu(open) {
  $("conversations").classList.toggle("shown", open);
  $("menu").setAttribute("aria-expanded", String(open));
}
$("menu").addEventListener("click", () => {
  menu($("menu").getAttribute("aria-expanded") !== "true");
  if ($("menu").getAttribute("aria-expanded") === "true") $("new").focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && $("menu").getAttribute("aria-expanded") === "true") {
    menu(false);
    $("menu").focus();
  }
});

/// Asks for a key; whether one was given.
function askKey() {
  const dialog = $("key");
  $("key-open").hidden = false;
  dialog.returnValue = "cancel";
  dialog.showModal();
  $("key-value").focus();
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    const given = dialog.returnValue === "save";
    if (given) api.setKey($("key-value").value.trim(), $("key-keep").checked);
    $("key-value").value = "";
    resolve(given);
  }, { once: true }));
}
$("key-open").addEventListener("click", async () => { if (await askKey()) hello(); });

/// Learns the model's name; asks for a key where one is needed.
async function hello() {
  try {
    const models = await api.get("/v1/models");
    const id = models.data[0]?.id ?? "";
    $("model").textContent = id;
    document.title = id ? id + " · dunlin" : "dunlin";
  } catch (error) {
    if (error.status === 401) {
      if (await askKey()) hello();
      return;
    }
    $("model").textContent = error.status === 503 ? "The model is being loaded…" : "The server does not answer.";
    setTimeout(hello, 2000);
  }
}

$("key-open").hidden = !api.hasKey();
beginChat({ closeMenu: () => menu(false), needsKey: async () => { if (await askKey()) hello(); } });
view(location.hash === "#live" ? "live" : "chat");
hello();
