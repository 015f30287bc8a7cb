// A small renderer of Markdown that builds elements and nothing else: no text of a model is ever
// read as HTML. It knows paragraphs, headings, lists, quotes, code, tables, rules, emphasis and
// links; what it does not know stays as it was written.

const make = (name, ...children) => {
  const element = document.createElement(name);
  element.append(...children);
  return element;
};

/// Cuts a text into blocks: {kind, source, ...}. A block's source does not change when text is
/// appended after it, but for the last one.
export function blocks(text) {
  const lines = text.split("\n");
  const found = [];
  let at = 0;
  const until = (stops) => {
    const from = at++;
    while (at < lines.length && !stops(lines[at])) at++;
    return lines.slice(from, at);
  };
  while (at < lines.length) {
    const line = lines[at];
    const fence = /^ {0,3}(```+|~~~+)\s*([^`]*)$/.exec(line);
    if (!line.trim()) {
      at++;
    } else if (fence) {
      const from = at++;
      const ends = (l) => l.trim().startsWith(fence[1]) && !l.trim().slice(fence[1].length).trim();
      while (at < lines.length && !ends(lines[at])) at++;
      const code = lines.slice(from + 1, at).join("\n");
      at++;
      found.push({ kind: "code", language: fence[2].trim().split(/\s/)[0], text: code,
        source: lines.slice(from, at).join("\n") });
    } else if (/^ {0,3}#{1,6}\s/.test(line)) {
      const [, marks, rest] = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/.exec(line) ?? [null, "#", line];
      found.push({ kind: "heading", level: marks.length, text: rest, source: line });
      at++;
    } else if (/^ {0,3}([-*_])\s*(\1\s*){2,}$/.test(line)) {
      found.push({ kind: "rule", source: line });
      at++;
    } else if (/^ {0,3}>/.test(line)) {
      const quoted = until((l) => !/^ {0,3}>/.test(l));
      found.push({ kind: "quote", text: quoted.map((l) => l.replace(/^ {0,3}> ?/, "")).join("\n"),
        source: quoted.join("\n") });
    } else if (item(line)) {
      // A blank line within a list does not end it where an item or an indented line follows.
      const from = at++;
      while (at < lines.length) {
        const next = lines[at].trim() ? lines[at] : lines[at + 1];
        if (next === undefined || !(item(next) || /^\s{2,}\S/.test(next) ||
          (lines[at].trim() && !starts(lines[at])))) break;
        at++;
      }
      const list = lines.slice(from, at);
      found.push({ kind: "list", lines: list, source: list.join("\n") });
    } else if (line.includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[at + 1] ?? "")) {
      const rows = until((l) => !l.includes("|"));
      found.push({ kind: "table", rows, source: rows.join("\n") });
    } else {
      const text = until((l) => !l.trim() || starts(l)).join("\n");
      found.push({ kind: "paragraph", text, source: text });
    }
  }
  return found;
}

const item = (line) => /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/.exec(line);
const starts = (line) => /^ {0,3}(```|~~~|#{1,6}\s|>)/.test(line) || item(line);

/// The element of a block.
export function element(block, depth = 0) {
  switch (block.kind) {
    case "code": return code(block);
    case "heading": return make("h" + Math.min(block.level + 1, 4), ...inline(block.text));
    case "rule": return make("hr");
    case "quote": return depth > 8 ? make("p", block.text)
      : make("blockquote", ...blocks(block.text).map((b) => element(b, depth + 1)));
    case "list": return list(block.lines, depth);
    case "table": return table(block.rows);
    default: return make("p", ...inline(block.text));
  }
}

function code({ language, text }) {
  const copy = make("button", "Copy");
  copy.type = "button";
  copy.setAttribute("aria-label", "Copy the code");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Not copied";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  const head = make("div", make("span", language || "code"), copy);
  head.className = "head";
  const pre = make("pre", make("code", text));
  // A keyboard can scroll it.
  pre.tabIndex = 0;
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", "Code" + (language ? ", " + language : ""));
  const box = make("div", head, pre);
  box.className = "code";
  return box;
}

function list(lines, depth) {
  const first = item(lines[0]);
  const ordered = /\d/.test(first[2]);
  const root = make(ordered ? "ol" : "ul");
  if (ordered) root.start = parseInt(first[2], 10);
  const indent = first[1].length;
  const entries = [];
  for (const line of lines) {
    const found = item(line);
    if (found && found[1].length <= indent + 1) entries.push([found[3]]);
    else entries.at(-1).push(line);
  }
  for (const [head, ...rest] of entries) {
    const entry = make("li", ...inline(head));
    const inner = rest.map((l) => l.replace(/^\s{1,4}/, "")).join("\n");
    if (inner.trim()) {
      entry.append(...(depth > 8 ? [inner] : blocks(inner).map((b) => element(b, depth + 1))));
    }
    root.append(entry);
  }
  return root;
}

function table(rows) {
  const cells = (row) => row.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const line = (row, name) => make("tr", ...cells(row).map((cell) => make(name, ...inline(cell))));
  const box = make("div", make("table", make("thead", line(rows[0], "th")),
    make("tbody", ...rows.slice(2).map((row) => line(row, "td")))));
  box.className = "scroll";
  return box;
}

const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]*?\S)\*\*|\*(?=[^\s*])([^*]*?[^\s*])\*|(?<![\w_])_(?=[^\s_])([^_]*?[^\s_])_(?![\w_])|~~(?=\S)([\s\S]*?\S)~~|\[([^\]\n]*)\]\(([^\s()]*(?:\([^\s()]*\)[^\s()]*)*)\)|(https?:\/\/[^\s<>"'`)\]]*[^\s<>"'`)\].,;:!?])|\\([\\`*_{}[\]()#+\-.!~|>])/;

/// Nodes of a line's text.
export function inline(text, depth = 0) {
  const nodes = [];
  let rest = text;
  while (rest) {
    const found = depth < 6 ? INLINE.exec(rest) : null;
    if (!found) {
      nodes.push(rest);
      break;
    }
    if (found.index) nodes.push(rest.slice(0, found.index));
    const [all, ticks, codeText, strong, star, line, struck, label, target, bare, escaped] = found;
    const within = (name, text) => make(name, ...inline(text, depth + 1));
    if (ticks) nodes.push(make("code", codeText.replace(/^ (.*) $/, "$1")));
    else if (strong !== undefined) nodes.push(within("strong", strong));
    else if (star !== undefined) nodes.push(within("em", star));
    else if (line !== undefined) nodes.push(within("em", line));
    else if (struck !== undefined) nodes.push(within("del", struck));
    else if (target !== undefined) nodes.push(link(target, inline(label, 6)) ?? all);
    else if (bare) nodes.push(link(bare, [bare]));
    else nodes.push(escaped);
    rest = rest.slice(found.index + all.length);
  }
  return nodes;
}

function link(target, children) {
  if (!/^(https?:\/\/|mailto:)/i.test(target)) return null;
  const anchor = make("a", ...children);
  anchor.href = target;
  anchor.rel = "noopener noreferrer";
  anchor.target = "_blank";
  return anchor;
}

/// Shows a text in a container; blocks that are there already are left alone, so that a selection in
/// them survives while more comes.
export function show(container, text) {
  const wanted = blocks(text);
  const shown = container.shownBlocks ?? [];
  let same = 0;
  while (same < wanted.length && same < shown.length && shown[same] === wanted[same].source) same++;
  while (container.childNodes.length > same) container.lastChild.remove();
  for (const block of wanted.slice(same)) container.append(element(block));
  container.shownBlocks = wanted.map((block) => block.source);
}
