//! The wire formats of a streamed answer, one per family of clients.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse, Response, Sse, sse::Event, sse::KeepAlive},
};
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_stream::{Stream, StreamExt};

/// Interval after which a silent stream sends a keep-alive: it keeps proxies from timing out during a long prefill, and
/// detects a vanished client by a failed write.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// A wire format of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    /// Server-sent events without names, and the text sent after the last frame of a complete answer.
    Data { last: Option<&'static str> },
    /// Server-sent events, each named by the `type` of its JSON. `ping` names the keep-alive event of a silent stream;
    /// `None` sends a comment instead.
    Named { ping: Option<&'static str> },
    /// Lines of JSON, one per frame. Clients parse every line, so a silent stream sends a space, with which the next
    /// line then begins.
    Lines,
}

/// A frame of a stream.
#[derive(Debug, PartialEq)]
pub(crate) enum Frame {
    Json(Value),
    /// One that was written before: its text takes a fraction of the memory of its value. It has no name any more.
    Written(Arc<str>),
    /// The text after the last frame.
    End(&'static str),
}

impl Frame {
    /// The text that is sent.
    pub(super) fn text(&self) -> Arc<str> {
        match self {
            Frame::Json(json) => json.to_string().into(),
            Frame::Written(text) => text.clone(),
            Frame::End(text) => (*text).into(),
        }
    }
}

impl Wire {
    /// The text that a complete answer sends after its last frame.
    pub(super) fn end(self) -> Option<Frame> {
        match self {
            Wire::Data { last } => last.map(Frame::End),
            Wire::Named { .. } | Wire::Lines => None,
        }
    }

    /// A response that sends these frames as they come.
    pub(crate) fn respond(self, frames: impl Stream<Item = Frame> + Send + 'static) -> Response {
        // Proxies that buffer would turn a stream into one late answer.
        let headers = [("cache-control", "no-cache"), ("x-accel-buffering", "no")];
        if self == Wire::Lines {
            let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
            return (headers, kind, Body::from_stream(lines(frames))).into_response();
        }
        let events = frames.map(move |frame| Ok::<Event, Infallible>(self.event(&frame)));
        (headers, Sse::new(events).keep_alive(self.keep_alive())).into_response()
    }

    fn event(self, frame: &Frame) -> Event {
        let json = match frame {
            Frame::End(text) => return Event::default().data(text),
            Frame::Written(text) => return Event::default().data(text),
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

/// The lines of these frames, and the keep-alives between them.
fn lines(
    frames: impl Stream<Item = Frame> + Send + 'static,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    let mut silence = interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
    // A client that reads late gets one keep-alive, and not one for each interval that it missed.
    silence.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let in_time = frames.timeout_repeating(silence);
    in_time.map(|frame| Ok(frame.map_or(Bytes::from_static(b" "), |frame| line(&frame))))
}

fn line(frame: &Frame) -> Bytes {
    match frame {
        Frame::Json(json) => format!("{json}\n").into(),
        Frame::Written(text) => format!("{text}\n").into(),
        Frame::End(text) => format!("{text}\n").into(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use serde_json::json;
    use tokio::{sync::mpsc, time::sleep};
    use tokio_stream::wrappers::ReceiverStream;

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

    /// Without them the server would compute a long prompt for a client that has left.
    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_of_lines_sends_spaces_with_which_the_next_line_begins() {
        let (frames, stream) = mpsc::channel(2);
        tokio::spawn(async move {
            for x in [1, 2] {
                sleep(KEEP_ALIVE * 5 / 2).await;
                frames.send(Frame::Json(json!({"x": x}))).await.unwrap();
            }
        });
        let response = Wire::Lines.respond(ReceiverStream::new(stream));
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert_eq!(text, "  {\"x\":1}\n  {\"x\":2}\n");
        assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{text}");
    }
}
