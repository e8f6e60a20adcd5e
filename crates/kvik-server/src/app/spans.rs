//! OpenTelemetry: a span for every answer, named by the semantic conventions for generative AI, with child spans for
//! queueing, prefill and decode. Prompts and answers are never included.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use axum::body::Bytes;
use kvik_cache::tier::Level;
use kvik_engine::api::{Event, FinishReason, Report, Request};
use opentelemetry::{
    Context, KeyValue, Value,
    trace::{
        Span, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
        Tracer, TracerProvider,
    },
};
use opentelemetry_http::{HttpClient, HttpError, Request as HttpRequest, Response};
use opentelemetry_otlp::{ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{SdkTracer, SdkTracerProvider},
};
use ureq::Agent;

/// Timeout of sending spans.
const SEND_TIME: Duration = Duration::from_secs(10);
/// Path at which a collector accepts spans, appended to its address.
const PATH: &str = "/v1/traces";

/// Creates spans and sends them to a collector in the background.
pub struct Spans {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    /// Name of the model that answers.
    model: String,
}

/// The HTTP client of the exporter.
#[derive(Debug)]
struct Sender(Agent);

#[async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: HttpRequest<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // Blocking is allowed on the exporter's own thread.
        let response = self.0.run(request.map(|bytes| bytes.to_vec()))?;
        let (parts, mut body) = response.into_parts();
        Ok(Response::from_parts(parts, body.read_to_vec()?.into()))
    }
}

impl Spans {
    /// The exporter of this model's answers to the collector at `address`, such as `http://127.0.0.1:4318`.
    ///
    /// # Errors
    /// If the address is invalid.
    pub fn new(address: &str, model: &str) -> Result<Spans, ExporterBuildError> {
        let address = address.trim_end_matches('/');
        let endpoint = if address.ends_with(PATH) { address.to_owned() } else { format!("{address}{PATH}") };
        let config = Agent::config_builder().timeout_global(Some(SEND_TIME));
        let agent = kvik_shelf::tls::agent_to(&endpoint, config);
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Sender(agent))
            .with_protocol(Protocol::HttpJson)
            .with_endpoint(endpoint)
            .build()?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder().with_service_name("kvik").with_attribute(version).build();
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        let tracer = provider.tracer("kvik");
        Ok(Spans { provider, tracer, model: model.to_owned() })
    }

    /// Sends the remaining spans.
    pub(crate) fn finish(&self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!("not all spans were sent: {error}");
        }
    }
}

/// The origin of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Came {
    /// The route, without path parameters.
    pub(crate) route: String,
    /// Its header `traceparent`, as W3C defines it.
    pub(crate) traceparent: Option<String>,
    /// When its body had been received.
    pub(crate) at: Option<SystemTime>,
    /// The same on the server's clock.
    pub(crate) arrived: Duration,
    /// How long it then waited for its model, which may have been loaded for it.
    pub(crate) loading: Duration,
}

impl Came {
    /// The name of the operation in the conventions.
    fn operation(&self) -> &'static str {
        match self.route.as_str() {
            route if route.contains("chat") || route.contains("messages") || route.contains("responses") => {
                "chat"
            }
            _ => "text_completion",
        }
    }

    /// The client's span.
    fn parent(&self) -> Context {
        let context = self.traceparent.as_deref().and_then(parse_traceparent);
        context.map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent))
    }
}

/// Parses `00-<trace>-<span>-<flags>`.
fn parse_traceparent(text: &str) -> Option<SpanContext> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_whole = version.len() == 2 && trace.len() == 32 && span.len() == 16 && flags.len() == 2;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    let context = SpanContext::new(trace, span, flags, true, TraceState::NONE);
    (is_whole && context.is_valid()).then_some(context)
}

/// The span of an answer in progress. Dropped before its end, it records that the client left.
pub(crate) struct AnswerSpan {
    spans: std::sync::Arc<Spans>,
    came: Came,
    began: SystemTime,
    attributes: Vec<KeyValue>,
    finish: Vec<&'static str>,
    ended: bool,
}

impl AnswerSpan {
    /// The span of an answer to `requests`, which differ in their prompts alone.
    pub(crate) fn new(
        spans: &std::sync::Arc<Spans>,
        came: Came,
        id: Option<&str>,
        requests: &[Request],
    ) -> AnswerSpan {
        let mut attributes = vec![
            KeyValue::new("gen_ai.operation.name", came.operation()),
            KeyValue::new("gen_ai.provider.name", "kvik"),
            KeyValue::new("gen_ai.request.model", spans.model.clone()),
            KeyValue::new("gen_ai.response.model", spans.model.clone()),
        ];
        attributes.extend(id.map(|id| KeyValue::new("gen_ai.response.id", id.to_owned())));
        attributes.extend(requests.first().into_iter().flat_map(asked));
        let began = came.at.unwrap_or_else(SystemTime::now);
        AnswerSpan { spans: spans.clone(), came, began, attributes, finish: Vec::new(), ended: false }
    }

    /// Sends nothing: the request was refused before it reached the model.
    pub(crate) fn discard(mut self) {
        self.ended = true;
    }

    /// Notes an event.
    pub(crate) fn note(&mut self, event: &Event) {
        if let Event::Finished { reason, .. } = event {
            self.finish.push(match reason {
                FinishReason::Length => "length",
                FinishReason::Loop(_) => "loop",
                FinishReason::Eos | FinishReason::StopString(_) | FinishReason::ConstraintDone => "stop",
            });
        }
    }

    /// Ends the span once all prompts have ended.
    pub(crate) fn end(&mut self, report: &Report) {
        let reasons: Vec<opentelemetry::StringValue> =
            self.finish.iter().map(|&reason| reason.into()).collect();
        self.attributes.extend([
            KeyValue::new("gen_ai.usage.input_tokens", report.prompt_tokens as i64),
            KeyValue::new("gen_ai.usage.output_tokens", report.generated_tokens as i64),
            KeyValue::new("gen_ai.usage.cache_read.input_tokens", report.cached_tokens as i64),
            KeyValue::new("gen_ai.response.finish_reasons", Value::Array(reasons.into())),
        ]);
        let of_tier = |level: Level| {
            KeyValue::new(format!("kvik.cache.{}_tokens", level.name()), report.loaded[level] as i64)
        };
        self.attributes.extend(Level::ALL.map(of_tier));
        self.send(Status::Unset, Some(report));
    }

    /// Ends the span with an error.
    pub(crate) fn fail(&mut self, error: &str) {
        self.attributes.push(KeyValue::new("error.type", error.to_owned()));
        self.send(Status::error(error.to_owned()), None);
    }

    fn send(&mut self, status: Status, report: Option<&Report>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let ended = SystemTime::now();
        let tracer = &self.spans.tracer;
        let name = format!("{} {}", self.came.operation(), self.spans.model);
        let attributes = std::mem::take(&mut self.attributes);
        let builder = tracer.span_builder(name).with_kind(SpanKind::Server).with_start_time(self.began);
        let parent = self.came.parent();
        let mut span = tracer.build_with_context(builder.with_attributes(attributes), &parent);
        span.set_status(status);
        if let Some(report) = report {
            let within = parent.with_remote_span_context(span.span_context().clone());
            steps(tracer, report, (self.began, ended), &within);
        }
        span.end_with_timestamp(ended);
    }
}

impl Drop for AnswerSpan {
    fn drop(&mut self) {
        self.fail("cancelled");
    }
}

/// Child spans of the phases of an answer between these times.
fn steps(tracer: &SdkTracer, report: &Report, during: (SystemTime, SystemTime), within: &Context) {
    for (name, from, until) in phases(report, during) {
        let builder = tracer.span_builder(name).with_kind(SpanKind::Internal).with_start_time(from);
        tracer.build_with_context(builder, within).end_with_timestamp(until);
    }
}

/// The phases with their beginnings and ends, the last one first. A report of several prompts has the sums of times that
/// passed at once, so no phase begins before the answer did.
fn phases(
    report: &Report,
    (began, ended): (SystemTime, SystemTime),
) -> [(&'static str, SystemTime, SystemTime); 3] {
    let mut until = ended;
    [("decode", report.decode), ("prefill", report.prefill), ("queue", report.queued)].map(|(name, time)| {
        let end = until;
        until = end.checked_sub(time).unwrap_or(end).max(began.min(end));
        (name, until, end)
    })
}

/// The sampling attributes of a request.
fn asked(request: &Request) -> Vec<KeyValue> {
    let sampling = &request.sampling;
    let mut attributes = vec![
        KeyValue::new("gen_ai.request.max_tokens", request.max_tokens as i64),
        KeyValue::new("gen_ai.request.temperature", f64::from(sampling.temperature)),
        KeyValue::new("gen_ai.request.top_p", f64::from(sampling.top_p)),
        KeyValue::new("gen_ai.request.seed", sampling.seed as i64),
    ];
    if sampling.top_k > 0 {
        attributes.push(KeyValue::new("gen_ai.request.top_k", sampling.top_k as i64));
    }
    if request.choices > 1 {
        attributes.push(KeyValue::new("gen_ai.request.choice.count", i64::from(request.choices)));
    }
    attributes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_span_is_read_as_w3c_writes_it() {
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let parent = parse_traceparent(trace).unwrap();
        assert_eq!(parent.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(parent.is_sampled() && parent.is_remote());
        for wrong in
            ["", "00-0-0-0", &trace[..50], "00-00000000000000000000000000000000-00f067aa0ba902b7-01", "xx"]
        {
            assert!(parse_traceparent(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn the_phases_of_prompts_in_parallel_are_within_their_answer() {
        let at = |ms: u64| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        let time = Duration::from_millis;
        let report = |factor: u32| Report {
            decode: time(30) * factor,
            prefill: time(20) * factor,
            queued: time(10) * factor,
            ..Report::default()
        };
        let of = |factor| phases(&report(factor), (at(1000), at(1060)));
        let one =
            [("decode", at(1030), at(1060)), ("prefill", at(1010), at(1030)), ("queue", at(1000), at(1010))];
        assert_eq!(of(1), one);
        let eight =
            [("decode", at(1000), at(1060)), ("prefill", at(1000), at(1000)), ("queue", at(1000), at(1000))];
        assert_eq!(of(8), eight);
    }

    #[test]
    fn routes_are_operations() {
        let operation = |route: &str| Came { route: route.into(), ..Came::default() }.operation();
        for chat in ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"] {
            assert_eq!(operation(chat), "chat");
        }
        assert_eq!(
            (operation("/completion"), operation("/api/generate")),
            ("text_completion", "text_completion")
        );
    }
}
