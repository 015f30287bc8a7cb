// Calls of the server that served this page.

let key = sessionStorage.getItem("dunlin.key") ?? localStorage.getItem("dunlin.key") ?? "";

export const hasKey = () => key !== "";

export function setKey(value, keep) {
  key = value;
  for (const store of [sessionStorage, localStorage]) store.removeItem("dunlin.key");
  if (value) (keep ? localStorage : sessionStorage).setItem("dunlin.key", value);
}

const headers = () => (key ? { authorization: "Bearer " + key } : {});

/// An answer that is not 200.
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function refusal(answer) {
  let message = answer.statusText || "status " + answer.status;
  try {
    message = (await answer.json()).error.message;
  } catch { /* the status has to do */ }
  return new Refused(answer.status, message);
}

export async function get(path) {
  const answer = await fetch(path, { headers: headers(), cache: "no-store" });
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}

/// Streams a chat's answer: calls `piece` with each new text; the tokens used come back.
export async function chat(body, signal, piece) {
  const answer = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { ...headers(), "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!answer.ok) throw await refusal(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", usage = null, reason = null;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The connection ended before the answer did.");
    rest += value;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const event = rest.slice(0, end);
      rest = rest.slice(end + 2);
      const data = event.split("\n").filter((l) => l.startsWith("data:")).map((l) => l.slice(5).trim()).join("\n");
      if (!data) continue;
      if (data === "[DONE]") return { usage, reason };
      const message = JSON.parse(data);
      if (message.error) throw new Error(message.error.message);
      usage = message.usage ?? usage;
      const choice = message.choices?.[0];
      reason = choice?.finish_reason ?? reason;
      if (choice?.delta?.content) piece(choice.delta.content);
    }
  }
}
