//! A client: the events it received, and whether it is connected.

use std::sync::{Arc, Mutex, MutexGuard};

use kvik_cache::Token;
use kvik_engine::api::{Event, EventSink, FinishReason, Report, RequestError};

/// The client's end of a request; clones are the same client.
#[derive(Clone, Default)]
pub(crate) struct Client(Arc<Mutex<Inbox>>);

#[derive(Default)]
pub(crate) struct Inbox {
    /// Tokens and end of each choice.
    pub(crate) choices: Vec<(Vec<Token>, Option<FinishReason>)>,
    pub(crate) end: Option<Result<Report, RequestError>>,
    pub(crate) closed: bool,
}

impl Client {
    pub(crate) fn new(choices: u32) -> Client {
        let choices = vec![(Vec::new(), None); choices as usize];
        Client(Arc::new(Mutex::new(Inbox { choices, ..Inbox::default() })))
    }

    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.0.lock().unwrap()
    }
}

impl EventSink for Client {
    fn send(&mut self, event: Event) -> bool {
        let mut inbox = self.inbox();
        if inbox.closed {
            return false;
        }
        assert!(inbox.end.is_none(), "an event after the end: {event:?}");
        match event {
            Event::Prefill { cached, done, total } => assert!(cached <= done && done <= total),
            Event::Text { choice, tokens, .. } => {
                let (all, end) = &mut inbox.choices[choice as usize];
                assert_eq!(*end, None, "text after the end of a choice");
                all.extend(tokens.iter().map(|token| token.token));
            }
            Event::Finished { choice, reason } => {
                let old = inbox.choices[choice as usize].1.replace(reason);
                assert_eq!(old, None, "a choice ends once");
            }
            Event::Done(report) => inbox.end = Some(Ok(report)),
            Event::Failed(error) => inbox.end = Some(Err(error)),
            Event::Vector(_) => panic!("nobody here wants a vector"),
            Event::Unconstrained(error) => panic!("all constraints here can be used: {error}"),
        }
        true
    }

    fn is_closed(&self) -> bool {
        self.inbox().closed
    }
}
