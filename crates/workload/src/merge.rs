//! Several ordered streams of requests as one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use dunlin_units::Time;

use crate::request::Request;

/// Merges streams, each in order of arrival, into one. Requests that arrive at the same moment come
/// in the order of their streams, and within a stream as they are.
#[derive(Debug)]
pub struct Merge<I> {
    sources: Vec<Source<I>>,
    /// The arrival of each stream's next request, and its place in `sources`.
    heads: BinaryHeap<Reverse<(Time, u32)>>,
}

#[derive(Debug)]
struct Source<I> {
    requests: I,
    head: Option<Request>,
}

impl<I: Iterator<Item = Request>> Merge<I> {
    /// Of these streams.
    ///
    /// # Panics
    /// Above 2^32 streams.
    pub fn new(streams: impl IntoIterator<Item = I>) -> Self {
        let mut heads = BinaryHeap::new();
        let mut sources = Vec::new();
        for mut requests in streams {
            if let Some(head) = requests.next() {
                let place = u32::try_from(sources.len()).expect("at most 2^32 streams");
                heads.push(Reverse((head.arrival, place)));
                sources.push(Source { requests, head: Some(head) });
            }
        }
        Self { sources, heads }
    }
}

impl<I: Iterator<Item = Request>> Iterator for Merge<I> {
    type Item = Request;

    #[inline]
    fn next(&mut self) -> Option<Request> {
        let mut top = self.heads.peek_mut()?;
        let Reverse((arrival, place)) = *top;
        let source = &mut self.sources[place as usize];
        let next = source.requests.next();
        match &next {
            Some(next) => {
                debug_assert!(next.arrival >= arrival, "a stream is out of order");
                *top = Reverse((next.arrival, place));
            }
            None => {
                PeekMut::pop(top);
            }
        }
        std::mem::replace(&mut source.head, next)
    }
}
