// The web page as its users meet it; see scripts/web-test.sh.
//
//     node test.mjs URL KEY MODEL [SCREENSHOTS]

import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import chromium from "@sparticuz/chromium";
import puppeteer from "puppeteer-core";

const [url, key, model, shots] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
if (shots) mkdirSync(shots, { recursive: true });

let browser;
try {
  browser = await puppeteer.launch({
    // One process for everything is for machines that allow no more; it is less stable.
    args: chromium.args.filter((arg) => arg !== "--single-process"),
    executablePath: await chromium.executablePath(),
    headless: "shell",
  });
} catch (error) {
  console.log("the web page in a browser: it does not start here: " + String(error).split("\n")[0]);
  process.exit(3);
}
console.log(await browser.version());

const page = await browser.newPage();
await page.setViewport({ width: 1200, height: 800 });
page.setDefaultTimeout(60_000);

// What must not happen, at any time.
const wrong = [];
page.on("pageerror", (error) => wrong.push("error: " + error.message));
page.on("console", (message) => {
  // A browser tells of every answer that is no 200; the first 401 is meant to be.
  if (message.type() === "error" && !message.text().includes("401")) wrong.push("console: " + message.text());
});
page.on("request", (request) => {
  if (!request.url().startsWith(url) && !/^(data|blob):/.test(request.url())) wrong.push("loads " + request.url());
});
page.on("dialog", (dialog) => dialog.accept());
await page.evaluateOnNewDocument(() => {
  document.addEventListener("securitypolicyviolation", (event) => console.error("policy: " + event.violatedDirective));
});

const text = (selector) => page.$eval(selector, (element) => element.textContent);
const count = (selector) => page.$$eval(selector, (all) => all.length);
const until = (condition, ...args) => page.waitForFunction(condition, { polling: 20 }, ...args);
const shot = (name) => shots && page.screenshot({ path: join(shots, name + ".png") });
const idle = () => until(() => document.getElementById("stop").hidden);
const answers = () => page.$$eval(".message.assistant .body", (all) => all.map((body) => body.innerText));
const stored = () => page.evaluate(() => JSON.parse(localStorage.getItem("dunlin.conversations"))[0]
  .messages.filter((m) => m.role === "assistant").map((m) => m.content));
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
async function send(message) {
  await page.focus("#prompt");
  await page.keyboard.type(message);
  await page.keyboard.press("Enter");
}
async function setting(name, value) {
  await page.$eval("#settings", (details) => { details.open = true; });
  await page.$eval(`#settings [name=${name}]`, (field, value) => {
    field.value = value;
    field.dispatchEvent(new Event("change", { bubbles: true }));
  }, value);
  await page.$eval("#settings", (details) => { details.open = false; });
}

/// Axe's rules, contrast among them, on what is shown now.
async function accessible(where) {
  await page.evaluate(axe);
  const result = await page.evaluate(() => window.axe.run(document, {
    runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
  }));
  const found = result.violations.map((v) => v.id + ": " + v.nodes.map((n) => n.target + " " + (n.any[0]?.message ?? "")).join("; "));
  assert.deepEqual(found, [], where);
  assert.ok(result.passes.length > 15, where);
}

const steps = {
  async "it asks for the key and names the model"() {
    await page.goto(url);
    await page.waitForSelector("#key[open]");
    await accessible("the dialog");
    await shot("key");
    await page.type("#key-value", "wrong");
    await page.keyboard.press("Enter");
    await until(() => document.querySelector("#key[open]") && document.getElementById("key-value").value === "");
    await page.type("#key-value", key);
    await page.keyboard.press("Enter");
    await until((model) => document.getElementById("model").textContent === model, model);
    assert.equal(await page.$("#key[open]"), null);
    await accessible("an empty conversation");
    await shot("empty");
  },

  async "an answer comes in pieces"() {
    await setting("temperature", "0");
    await setting("repetition_penalty", "1");
    await setting("max_tokens", "300");
    await page.evaluate(() => {
      window.lengths = [];
      new MutationObserver(() => {
        const body = document.querySelector(".message.assistant.writing .body");
        if (body) window.lengths.push(body.textContent.length);
      }).observe(document.getElementById("messages"), { subtree: true, childList: true, characterData: true });
    });
    // Long enough that a fast server does not answer between two frames.
    await send("Write a long story about the sea.");
    await until(() => document.querySelector(".message.assistant"));
    await idle();
    // What is shown and kept is what the server answers to anybody.
    const [answer] = await stored();
    const { choices } = await (await fetch(url + "/v1/chat/completions", {
      method: "POST", headers: { authorization: "Bearer " + key },
      body: JSON.stringify({ temperature: 0, max_tokens: 300, top_p: 0.95, top_k: 40, min_p: 0.05,
        messages: [{ role: "user", content: "Write a long story about the sea." }] }),
    })).json();
    assert.equal(answer, choices[0].message.content);
    assert.ok(answer.length > 20 && (await answers())[0].includes(answer.slice(0, 15)), answer);
    const lengths = new Set(await page.evaluate(() => window.lengths));
    assert.ok(lengths.size >= 3, "lengths seen: " + [...lengths]);
    assert.match(await text(".message.assistant .acts"), /\d+ tokens · first after \d+ ms · .*prompt \d+/);
    const plain = (text) => text.replace(/\s+/g, " ").trim();
    assert.equal(plain(await text("#status")), plain("Answer: " + answer));
    assert.equal(await text("#list .current .open"), "Write a long story about the sea.");
    await accessible("a conversation");
    await shot("answer");
  },

  async "asking again gives the same answer at temperature 0"() {
    const before = await answers();
    const retry = await page.waitForSelector(".message.assistant [aria-label='Retry this answer']");
    await retry.click();
    await until(() => document.querySelector(".message.writing"));
    await idle();
    assert.deepEqual(await answers(), before);
    // Its prompt was there.
    assert.match(await text(".message.assistant .acts"), /of it cached/);
  },

  async "an answer is stopped, and with it the work"() {
    await setting("max_tokens", "1500");
    await send("Write a long story about the sea, with many chapters.");
    await until(() => document.querySelector(".message.writing .body")?.textContent.length > 40);
    await shot("writing");
    await page.keyboard.press("Escape");
    await idle();
    assert.match(await text(".message:last-child .acts"), /stopped/);
    const length = (await answers())[1].length;
    await until(async () => (await (await fetch("/live")).json()).running === 0);
    await sleep(300);
    assert.equal((await answers())[1].length, length);
    // The button does the same.
    await send("Write another long story about the sea, with many chapters.");
    // At once: a fast server would be done before a mouse has moved there.
    await until(() => {
      const some = document.querySelector(".message.writing .body")?.textContent.length > 10;
      if (some) document.getElementById("stop").click();
      return some;
    });
    await idle();
    assert.equal(await count(".message"), 6);
  },

  async "a message is edited, and what followed it goes"() {
    await setting("max_tokens", "30");
    await page.click(".message.user [aria-label='Edit this message']");
    await page.waitForSelector(".edit textarea");
    await accessible("editing");
    await page.keyboard.press("Escape");
    assert.equal(await count(".message"), 6);
    await page.click(".message.user [aria-label='Edit this message']");
    await page.$eval(".edit textarea", (field) => { field.value = ""; });
    await page.type(".edit textarea", "What is the capital of Italy?");
    await page.keyboard.press("Enter");
    await until(() => document.querySelectorAll(".message").length === 2);
    await idle();
    assert.ok((await answers())[0].length > 10);
    assert.equal(await text(".message.user .body"), "What is the capital of Italy?");
  },

  async "errors of the server are told"() {
    await setting("max_tokens", "30");
    await setting("stop", "");
    await setting("seed", "1e30");
    const noise = wrong.length;
    await send("Hi");
    await until(() => !document.getElementById("problem").hidden);
    wrong.length = noise;
    assert.match(await text("#problem"), /seed/);
    assert.equal(await count(".message"), 3, "the message stays, an empty answer does not");
    await accessible("a problem");
    await shot("problem");
    await setting("seed", "");
  },

  async "conversations and settings outlive the page"() {
    const before = await answers();
    await page.reload();
    await until((model) => document.getElementById("model").textContent === model, model);
    assert.deepEqual(await answers(), before);
    assert.equal(await page.$eval("[name=max_tokens]", (field) => field.value), "30");
    await page.click("#new");
    assert.equal(await count(".message"), 0);
    assert.equal(await count("#list li"), 2);
    await page.click("#list li:nth-child(2) .open");
    assert.deepEqual(await answers(), before);
  },

  async "files of conversations are read, and nothing in them is HTML"() {
    const content = [
      "# Heading", "Some **bold**, *slanted*, `code` and ~~gone~~ text with snake_case_names.",
      "- one\n- two\n  1. inner\n  2. inner\n- three", "> quoted",
      "| a | b |\n|---|---|\n| 1 | 2 |",
      "```js\nconst x = '<b>';\n```",
      "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>",
      "[good](https://example.org/) [bad](javascript:document.title='broken') https://example.org/x.",
    ].join("\n\n");
    const file = join(tmpdir(), "dunlin-import-" + process.pid + ".json");
    const conversation = { id: "imported", title: "Imported", changed: Date.now() + 1e6, messages: [
      { role: "user", content: "<b>not bold</b>" }, { role: "assistant", content },
      { role: "system", content: "left out" }, { role: "assistant" },
    ] };
    writeFileSync(file, JSON.stringify({ conversations: [conversation, { messages: 5 }, null] }));
    await (await page.$("#import-file")).uploadFile(file);
    await until(() => document.querySelector("#list .current .open")?.textContent === "Imported");
    assert.equal(await count(".message"), 2);
    assert.equal(await text(".message.user .body"), "<b>not bold</b>");
    const inside = (name) => count(".message.assistant .body " + name);
    for (const name of ["h2", "strong", "em", "p > code", "del", "ul > li", "ul ol > li", "blockquote p", "td", "pre code"]) {
      assert.ok(await inside(name) > 0, name);
    }
    assert.equal(await inside("ul > li"), 3);
    assert.equal(await inside("img") + await inside("script"), 0);
    assert.match((await answers())[0], /<img src=x onerror=/);
    assert.deepEqual(await page.$$eval(".body a", (all) => all.map((a) => a.getAttribute("href"))),
      ["https://example.org/", "https://example.org/x"]);
    assert.doesNotMatch(await page.title(), /broken/);
    assert.match((await answers())[0], /snake_case_names/);
    await accessible("all of Markdown");
    await shot("markdown");
    // What is no such file is told.
    writeFileSync(file, "nonsense");
    await (await page.$("#import-file")).uploadFile(file);
    await until(() => document.getElementById("problem").textContent.includes("cannot be used"));
    await page.click("#list .current [aria-label^='Delete']");
    await until(() => ![...document.querySelectorAll("#list .open")].some((o) => o.textContent === "Imported"));
  },

  async "the theme is the system's, or the one that was chosen"() {
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const system = (value) => page.emulateMediaFeatures([{ name: "prefers-color-scheme", value }]);
    await system("light");
    const light = await ground();
    await system("dark");
    const dark = await ground();
    assert.notEqual(light, dark);
    await accessible("dark");
    await shot("dark");
    await page.click("#theme");
    assert.equal(await ground(), light);
    await page.reload();
    assert.equal(await ground(), light, "the choice is kept");
    await page.click("#theme");
    await system("light");
    assert.equal(await ground(), dark);
    await page.click("#theme");
    assert.equal(await ground(), light);
    await page.emulateMediaFeatures([]);
  },

  async "a keyboard is enough"() {
    await page.reload();
    await until((model) => document.getElementById("model").textContent === model, model);
    await page.evaluate(() => document.activeElement.blur());
    const seen = [];
    for (let i = 0; i < 45; i++) {
      await page.keyboard.press("Tab");
      seen.push(await page.evaluate(() => {
        const at = document.activeElement;
        const { outlineStyle, outlineWidth } = getComputedStyle(at);
        return [at.id || at.className || at.tagName, outlineStyle !== "none" && outlineWidth !== "0px"];
      }));
    }
    // It goes round: from the last element past the browser's own to the first.
    const names = seen.map(([name]) => name).slice(seen.findIndex(([name]) => name === "skip"));
    const order = ["skip", "show-chat", "show-live", "theme", "new", "open", "export", "import", "prompt", "send"];
    const places = order.map((name) => names.indexOf(name));
    assert.ok(!places.includes(-1), names.join(" "));
    assert.deepEqual(places, [...places].sort((a, b) => a - b), names.join(" "));
    for (const [name, marked] of seen) assert.ok(marked || name === "BODY", name + " shows its focus");
    // To the live view and back, to a new conversation, and a message, with keys alone.
    await page.focus("#show-live");
    await page.keyboard.press("Enter");
    await until(() => !document.getElementById("live-view").hidden);
    await page.focus("#show-chat");
    await page.keyboard.press("Space");
    await page.focus("#new");
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "prompt");
    await page.keyboard.type("one");
    await page.keyboard.down("Shift");
    await page.keyboard.press("Enter");
    await page.keyboard.up("Shift");
    await page.keyboard.type("two");
    assert.equal(await page.$eval("#prompt", (field) => field.value), "one\ntwo");
    await page.keyboard.press("Enter");
    await until(() => document.querySelector(".message.assistant"));
    await idle();
    assert.equal(await text(".message.user .body"), "one\ntwo");
  },

  async "it fits a telephone"() {
    await page.setViewport({ width: 360, height: 640, hasTouch: true, isMobile: true });
    const fits = () => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);
    assert.ok(await fits(), "the conversation");
    await accessible("narrow");
    await shot("narrow");
    await page.click("#menu");
    await page.waitForSelector("#conversations.shown");
    await accessible("the menu");
    await shot("narrow-menu");
    await page.click("#list .open");
    assert.equal(await page.$("#conversations.shown"), null);
    await page.$eval("#settings", (details) => { details.open = true; });
    assert.ok(await fits(), "settings");
    await shot("narrow-settings");
    await page.$eval("#settings", (details) => { details.open = false; });
    await page.click("#show-live");
    await sleep(1500);
    assert.ok(await fits(), "the live view");
    await shot("narrow-live");
    await page.click("#show-chat");
    await page.setViewport({ width: 1200, height: 800 });
  },

  async "charts move with the work"() {
    await page.click("#show-live");
    const path = () => page.$eval("#charts figure:nth-child(1) path.a", (path) => path.getAttribute("d"));
    await until(() => document.querySelector("#charts path.a")?.getAttribute("d"));
    const before = await path();
    // Several requests at once, from beside the page.
    const body = JSON.stringify({ messages: [{ role: "user", content: "Tell me a story about birds." }], max_tokens: 1500, ignore_eos: true });
    const work = Array.from({ length: 3 }, () => fetch(url + "/v1/chat/completions", {
      method: "POST", body, headers: { authorization: "Bearer " + key },
    }).then((answer) => answer.json()));
    const number = (figure, at = 1) => page.$eval(`#charts figure:nth-child(${figure}) .keys span:nth-child(${at}) b`, (b) => parseFloat(b.textContent));
    const most = {};
    let done = false;
    Promise.all(work).then(() => { done = true; });
    const from = Date.now();
    while ((!done || Date.now() - from < 2500) && Date.now() - from < 120_000) {
      for (const [name, figure] of [["generated", 1], ["running", 4], ["decode", 5], ["kv", 6], ["watts", 8], ["time to first token", 2], ["time per token", 3]]) {
        most[name] = Math.max(most[name] ?? 0, (await number(figure)) || 0);
      }
      await sleep(100);
    }
    await shot("live");
    await sleep(1200);
    for (const [name, value] of Object.entries(most)) assert.ok(value > 0, name + ": " + value);
    assert.notEqual(await path(), before);
    assert.match(await page.$eval("#charts svg", (svg) => svg.getAttribute("aria-label")), /Throughput.*generated/);
    await accessible("the live view");
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "dark" }]);
    await accessible("the live view, dark");
    await shot("live-dark");
  },
};

let failed = 0;
for (const [name, step] of Object.entries(steps)) {
  const began = Date.now();
  try {
    await step();
    assert.deepEqual(wrong.splice(0), []);
    console.log(`ok    ${name} (${Date.now() - began} ms)`);
  } catch (error) {
    failed++;
    console.log(`WRONG ${name}: ${error.message}`);
    await shot("failure-" + failed);
    wrong.length = 0;
  }
}
await browser.close();
if (failed) {
  console.log(failed + " of " + Object.keys(steps).length + " failed");
  process.exit(1);
}
