//! Answers that are written while they are made.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use serde::Serialize;

use crate::reply::{Piece, Reply};

/// Pieces that are ready together are written together, up to so many bytes.
const WRITE_BYTES: usize = 16 << 10;

/// How a protocol writes a stream.
pub trait Encoder: Send + 'static {
    /// The stream's content type.
    const CONTENT_TYPE: &'static str;

    /// What precedes all pieces.
    fn begin(&mut self, _out: &mut Vec<u8>) {}

    /// A piece of the answer; the last is [`Piece::Done`] or [`Piece::Failed`].
    fn piece(&mut self, piece: Piece, out: &mut Vec<u8>);

    /// What says that the stream is alive while nothing comes.
    fn keep_alive(&mut self, out: &mut Vec<u8>);
}

struct State<E> {
    reply: Reply,
    encoder: E,
    begun: bool,
    keep_alive: Duration,
}

/// An answer that is written as it comes. It is cancelled when the client stops reading it.
pub fn respond<E: Encoder>(reply: Reply, encoder: E, keep_alive: Duration) -> Response {
    let state = State { reply, encoder, begun: false, keep_alive };
    let body = Body::from_stream(stream::unfold(state, |mut state| async move {
        let bytes = state.write().await?;
        Some((Ok::<_, Infallible>(bytes), state))
    }));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(E::CONTENT_TYPE)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // Proxies that gather an answer would defeat its purpose.
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, body).into_response()
}

impl<E: Encoder> State<E> {
    /// The next bytes; none at the end.
    async fn write(&mut self) -> Option<Bytes> {
        let mut out = Vec::new();
        if !self.begun {
            self.begun = true;
            self.encoder.begin(&mut out);
        }
        while out.is_empty() {
            match tokio::time::timeout(self.keep_alive, self.reply.next()).await {
                Err(_) => self.encoder.keep_alive(&mut out),
                Ok(Some(piece)) => self.encoder.piece(piece, &mut out),
                Ok(None) => return None,
            }
        }
        while out.len() < WRITE_BYTES
            && let Some(piece) = self.reply.try_next()
        {
            self.encoder.piece(piece, &mut out);
        }
        Some(out.into())
    }
}

/// Appends a value as JSON.
pub fn push_json(out: &mut Vec<u8>, value: &impl Serialize) {
    let length = out.len();
    // Our own types have no keys that are no strings, the only way that this fails.
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(length);
    }
}

/// Appends a server-sent event without a name.
pub fn push_data(out: &mut Vec<u8>, value: &impl Serialize) {
    out.extend_from_slice(b"data: ");
    push_json(out, value);
    out.extend_from_slice(b"\n\n");
}

/// Appends a server-sent event.
pub fn push_event(out: &mut Vec<u8>, name: &str, value: &impl Serialize) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
    push_data(out, value);
}
