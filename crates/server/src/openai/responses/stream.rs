//! A response as a stream of events.

use serde::Serialize;
use serde_json::json;

use super::{OutputItem, Response, types::OutputText};
use crate::{
    reply::Piece,
    service::Finish,
    stream::{Encoder, push_event},
};

/// Writes the events of a response, numbered.
pub struct ResponseStream {
    response: Response,
    /// The message's name.
    message_id: String,
    /// The message's text so far, while it is open.
    message: Option<String>,
    finish: Option<Finish>,
    next: u64,
}

/// An event's fields.
#[derive(Serialize)]
struct Event<'a, T: Serialize> {
    r#type: &'a str,
    #[serde(flatten)]
    fields: T,
    sequence_number: u64,
}

impl ResponseStream {
    /// A stream at its start.
    pub fn new(response: Response, message_id: String) -> Self {
        Self { response, message_id, message: None, finish: None, next: 0 }
    }

    fn push(&mut self, name: &str, fields: impl Serialize, out: &mut Vec<u8>) {
        let event = Event { r#type: name, fields, sequence_number: self.next };
        self.next += 1;
        push_event(out, name, &event);
    }

    fn push_response(&mut self, name: &str, out: &mut Vec<u8>) {
        let fields = json!({"response": self.response});
        self.push(name, fields, out);
    }

    fn open_message(&mut self, out: &mut Vec<u8>) {
        let index = self.response.output.len();
        if index > 0 {
            self.message_id = format!("{}-{index}", self.message_id);
        }
        let id = self.message_id.clone();
        let item = OutputItem::message(id.clone(), "in_progress", None);
        self.push("response.output_item.added", json!({"output_index": index, "item": item}), out);
        let part = OutputText::new(String::new());
        let fields =
            json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
        self.push("response.content_part.added", fields, out);
        self.message = Some(String::new());
    }

    fn close_message(&mut self, out: &mut Vec<u8>) {
        let Some(text) = self.message.take() else { return };
        let (index, id) = (self.response.output.len(), self.message_id.clone());
        let fields = json!({
            "item_id": id, "output_index": index, "content_index": 0, "text": text, "logprobs": [],
        });
        self.push("response.output_text.done", fields, out);
        let part = OutputText::new(text.clone());
        let fields =
            json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
        self.push("response.content_part.done", fields, out);
        let status = match self.finish {
            Some(Finish::Length) => "incomplete",
            _ => "completed",
        };
        self.push_item(OutputItem::message(id, status, Some(text)), out);
    }

    /// Ends an item.
    fn push_item(&mut self, item: OutputItem, out: &mut Vec<u8>) {
        let index = self.response.output.len();
        self.push("response.output_item.done", json!({"output_index": index, "item": item}), out);
        self.response.output.push(item);
    }
}

impl Encoder for ResponseStream {
    const CONTENT_TYPE: &'static str = "text/event-stream";

    fn begin(&mut self, out: &mut Vec<u8>) {
        self.push_response("response.created", out);
        self.push_response("response.in_progress", out);
    }

    fn piece(&mut self, piece: Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Text { text, .. } if text.is_empty() => {}
            Piece::Text { text, .. } => {
                if self.message.is_none() {
                    self.open_message(out);
                }
                let fields = json!({
                    "item_id": self.message_id, "output_index": self.response.output.len(),
                    "content_index": 0, "delta": text, "logprobs": [],
                });
                self.push("response.output_text.delta", fields, out);
                if let Some(message) = &mut self.message {
                    message.push_str(&text);
                }
            }
            Piece::Call { id, call, .. } => {
                self.close_message(out);
                let index = self.response.output.len();
                let arguments = call.arguments.clone();
                let item = OutputItem::call(id, call, "completed");
                let OutputItem::FunctionCall { id, call_id, name, .. } = &item else { return };
                let begun = OutputItem::FunctionCall {
                    id: id.clone(),
                    call_id: call_id.clone(),
                    name: name.clone(),
                    arguments: String::new(),
                    status: "in_progress",
                };
                let added = json!({"output_index": index, "item": begun});
                let delta = json!({"item_id": id, "output_index": index, "delta": arguments});
                let done = json!({
                    "item_id": id, "output_index": index, "name": name, "arguments": arguments,
                });
                self.push("response.output_item.added", added, out);
                self.push("response.function_call_arguments.delta", delta, out);
                self.push("response.function_call_arguments.done", done, out);
                self.push_item(item, out);
            }
            Piece::End { finish, .. } => {
                self.finish = Some(finish);
                if self.message.is_none() && self.response.output.is_empty() {
                    self.open_message(out);
                }
                self.close_message(out);
            }
            Piece::Done(usage) => {
                self.response.end(self.finish.as_ref(), &usage);
                let name = format!("response.{}", self.response.status);
                self.push_response(&name, out);
            }
            Piece::Failed(error) => {
                self.response.status = "failed";
                let code = error.code.unwrap_or("server_error");
                self.response.error = Some(json!({"code": code, "message": error.message}));
                self.push_response("response.failed", out);
            }
        }
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b": keep-alive\n\n");
    }
}
