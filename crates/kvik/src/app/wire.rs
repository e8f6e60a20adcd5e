//! How the frames of a streamed answer go over the wire: one form a family of clients.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse, Response, Sse, sse::Event, sse::KeepAlive},
};
use serde_json::Value;
use tokio_stream::{Stream, StreamExt};

/// Pause after which a silent stream of events says that it is still there: proxies stay patient during a long
/// prefill, and a client that has vanished without a word is noticed by the write.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// One form of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    /// Server-sent events without names, and what is sent behind the last frame of an answer that is complete.
    Data { last: Option<&'static str> },
    /// Server-sent events, each named by the `type` of its JSON. `ping` names the event that a silent stream sends; a
    /// comment where there is none.
    Named { ping: Option<&'static str> },
    /// One line of JSON each. A silent stream says nothing: clients read every line.
    Lines,
}

/// What is sent as one.
#[derive(Debug, PartialEq)]
pub(crate) enum Frame {
    Json(Value),
    /// Behind the last one.
    End(&'static str),
}

impl Wire {
    /// What a complete answer sends behind its last frame.
    pub(super) fn end(self) -> Option<Frame> {
        match self {
            Wire::Data { last } => last.map(Frame::End),
            Wire::Named { .. } | Wire::Lines => None,
        }
    }

    /// A response that sends these as they come.
    pub(crate) fn respond(self, frames: impl Stream<Item = Frame> + Send + 'static) -> Response {
        // Proxies that buffer would turn a stream into one late answer.
        let headers = [("cache-control", "no-cache"), ("x-accel-buffering", "no")];
        if self == Wire::Lines {
            let lines = frames.map(|frame| Ok::<Bytes, Infallible>(line(&frame)));
            let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
            return (headers, kind, Body::from_stream(lines)).into_response();
        }
        let events = frames.map(move |frame| Ok::<Event, Infallible>(self.event(&frame)));
        (headers, Sse::new(events).keep_alive(self.keep_alive())).into_response()
    }

    fn event(self, frame: &Frame) -> Event {
        let json = match frame {
            Frame::End(text) => return Event::default().data(text),
            Frame::Json(json) => json,
        };
        let event = Event::default().data(json.to_string());
        match (self, json["type"].as_str()) {
            (Wire::Named { .. }, Some(name)) => event.event(name),
            _ => event,
        }
    }

    fn keep_alive(self) -> KeepAlive {
        let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
        match self {
            Wire::Named { ping: Some(name) } => {
                let json = serde_json::json!({"type": name});
                keep_alive.event(Event::default().event(name).data(json.to_string()))
            }
            _ => keep_alive,
        }
    }
}

fn line(frame: &Frame) -> Bytes {
    match frame {
        Frame::Json(json) => format!("{json}\n").into(),
        Frame::End(text) => format!("{text}\n").into(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use serde_json::json;

    use super::*;

    async fn sent(wire: Wire) -> (String, String) {
        let frames = [json!({"type": "a", "x": 1}), json!({"x": "two\nlines"})].map(Frame::Json);
        let frames = frames.into_iter().chain(wire.end()).collect::<Vec<_>>();
        let response = wire.respond(tokio_stream::iter(frames));
        let kind = response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (kind, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn every_form_sends_the_same_frames() {
        let check = async |wire: Wire, kind: &str, text: &str| {
            assert_eq!(sent(wire).await, (kind.to_owned(), text.to_owned()));
        };
        let (first, second) = (r#"{"type":"a","x":1}"#, r#"{"x":"two\nlines"}"#);
        let data = format!("data: {first}\n\ndata: {second}\n\n");
        let events = "text/event-stream";
        check(Wire::Data { last: None }, events, &data).await;
        check(Wire::Data { last: Some("[DONE]") }, events, &format!("{data}data: [DONE]\n\n")).await;
        let (kind, text) = sent(Wire::Named { ping: None }).await;
        assert_eq!(kind, events);
        let named = text.split("\n\n").next().unwrap().lines().collect::<Vec<_>>();
        assert!(named.contains(&"event: a") && named.contains(&format!("data: {first}").as_str()), "{text}");
        assert!(text.ends_with(&format!("data: {second}\n\n")), "{text}");
        check(Wire::Lines, "application/x-ndjson", &format!("{first}\n{second}\n")).await;
    }
}
