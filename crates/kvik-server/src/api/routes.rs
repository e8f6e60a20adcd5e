//! The route table: the router, the OpenAPI document and the answer to an unknown path are all built from
//! the list of dialects.

use std::{collections::HashMap, sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    body::Body,
    extract::{MatchedPath, Request, State},
    http::{HeaderName, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use kvik_model::pulse::Life;
use serde::Serialize;
use serde_json::{Map, Value};
use tower::ServiceExt;

use super::{
    dialects, ollama, openapi,
    route::{Answer, Dialect, Errors, Operation, answers, at, gives},
};
use crate::{
    app::{
        guard,
        keys::Caller,
        life,
        shelf::{Listed, OpenModel, Shelf, addressed::Unaddressed},
        state::App,
    },
    described::JsonSchema,
    described::SchemaOf,
    http::{
        answer::words,
        error::{ApiError, ErrorBody},
        origins,
    },
};
use kvik_serving::settings::logging;

/// Returns the routes for operators: health, readiness, metrics and the OpenAPI document.
pub(super) fn operation() -> Dialect {
    let metrics =
        answers(Answer::Text(&["application/openmetrics-text"]), "Metrics, as Prometheus reads them");
    let lives = |operation| Operation { others: const { &[("503", SchemaOf::of::<Stuck>())] }, ..operation };
    let of_server = vec![
        at(&guard::HEALTH).get(health, lives(gives::<Health<OkWord>>("Whether the server answers requests"))),
        at(&guard::READY)
            .get(ready, lives(gives::<Health<ReadyWord>>("Whether the server is to be sent requests"))),
        // Metrics cover all tenants.
        at(&["/metrics"])
            .get(metrics_text, metrics)
            .through(|methods| methods.route_layer(middleware::from_fn(guard::admins_only))),
        at(&["/openapi.json"]).get(openapi::document, gives::<Map<String, Value>>("This document")),
    ];
    Dialect { name: "operation", errors: Errors::of::<ErrorBody>(), routes: Vec::new(), of_server }
}

/// Response header with the milliseconds that a request waited for its model to be loaded.
const WAITED: HeaderName = HeaderName::from_static("kvik-model-load-ms");

/// Formats an error as a response body.
type WordError = fn(&ApiError) -> Value;

/// Returns the router of one model, which requests reach after authentication and dispatch.
pub fn of_model(app: Arc<App>) -> Router {
    let routes = dialects().into_iter().flat_map(|dialect| dialect.routes);
    let paths = routes.flat_map(|route| route.paths.iter().map(move |path| (*path, route.methods.clone())));
    paths.fold(Router::new(), |router, (path, methods)| router.route(path, methods)).with_state(app)
}

/// Returns the router of a server with one model.
pub fn router(app: Arc<App>) -> Router {
    over(shelf_of(app))
}

/// Returns the models of a server with this one, which is not closed.
pub fn shelf_of(app: Arc<App>) -> Arc<Shelf> {
    let (bytes, routes) = (app.serving.model.bytes, of_model(app.clone()));
    let open = OpenModel { app, routes, bytes, handle: None, close: Box::new(|| ()) };
    Shelf::of(open, Duration::ZERO)
}

/// Returns the router of a server with these models: authentication, dispatch to a model, and all routes.
pub fn over(shelf: Arc<Shelf>) -> Router {
    let mut router = Router::new();
    let mut known: Vec<&str> = Vec::new();
    let mut errors = HashMap::new();
    let mut taken = HashMap::new();
    for dialect in dialects() {
        let word = dialect.errors.word;
        for (paths, operations) in dialect.listed() {
            known.extend(paths);
            taken.extend(paths.iter().map(|path| (*path, methods_of(operations))));
            errors.extend(paths.iter().map(|path| (*path, word)));
        }
        let handed_on = dialect.routes.into_iter().map(|route| (route.paths, route.behind(hand_on)));
        let answered = dialect.of_server.into_iter().map(|route| (route.paths, route.methods));
        for (paths, methods) in handed_on.chain(answered) {
            router = paths.iter().fold(router, |router, path| router.route(path, methods.clone()));
        }
    }
    let (known, server): (Arc<str>, _) = (known.join(", ").into(), shelf.server.clone());
    let taken = Arc::new(taken);
    let router = router
        .fallback(move |request| unknown_route(known.clone(), request))
        .method_not_allowed_fallback(move |request| wrong_method(taken.clone(), request))
        .layer(middleware::from_fn_with_state(server.clone(), guard::admit))
        .layer(origins::cors(&server.senders.origins))
        .layer(middleware::from_fn_with_state(server.clone(), guard::check_sender))
        .layer(middleware::from_fn(guard::word_in_json))
        .layer(middleware::from_fn_with_state(Arc::new(errors), word_in_dialect))
        .layer(middleware::from_fn_with_state(server, guard::count))
        .with_state(shelf);
    #[cfg(test)]
    let router = router.layer(middleware::from_fn(super::tests::described::check));
    router
}

/// Forwards a request to its model, loading the model first if necessary.
async fn hand_on(State(shelf): State<Arc<Shelf>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let (lease, mut request) = match shelf.addressed(request).await {
        Ok(addressed) => addressed,
        Err(Unaddressed::Refused(error)) => return error.into_response(),
        Err(Unaddressed::Absent(model)) => return ollama::unloaded(&path, &model),
    };
    // What is deleted is deleted of all models.
    request.extensions_mut().insert(shelf);
    let Ok(mut response) = lease.routes.clone().oneshot(request).await;
    if let Some(waited) = lease.waited {
        let millis = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        response.headers_mut().insert(WAITED, millis.into());
    }
    lease.until_the_end_of(response)
}

/// Formats an error in the dialect of its route.
async fn word_in_dialect(
    State(errors): State<Arc<HashMap<&'static str, WordError>>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.extensions().get::<MatchedPath>().cloned();
    let mut response = next.run(request).await;
    let word = path.and_then(|path| errors.get(path.as_str()).copied());
    if let (Some(word), Some(error)) = (word, response.extensions_mut().remove::<ApiError>()) {
        let words = word(&error).to_string();
        // The model's router has set the length of the original body.
        if let Some(length) = response.headers_mut().get_mut(header::CONTENT_LENGTH) {
            *length = words.len().into();
        }
        *response.body_mut() = Body::from(words);
    }
    response
}

async fn unknown_route(known: Arc<str>, request: Request) -> ApiError {
    let (method, path) = (request.method(), request.uri().path());
    let served = match of_lm_studio(&known, path) {
        Some(route) => format!("LM Studio's own routes are not served, and the same is at {route}"),
        None => format!("kvik serves {known}"),
    };
    let message = format!("there is no route {method} {path}; {served}");
    ApiError::new(StatusCode::NOT_FOUND, Some("unknown_route"), message)
}

/// The route of OpenAI's API that does what a route of LM Studio does there.
fn of_lm_studio<'a>(known: &'a str, path: &str) -> Option<&'a str> {
    let rest = path.strip_prefix("/api/v0/").or_else(|| path.strip_prefix("/api/v1/"))?;
    known.split(", ").find(|route| route.strip_prefix("/v1/") == Some(rest))
}

/// The methods of a route, as a message names them.
fn methods_of(operations: &[Operation]) -> String {
    let methods: Vec<_> = operations.iter().map(|operation| operation.method.to_ascii_uppercase()).collect();
    methods.join(", ")
}

/// Refuses a method; `taken` has those of each path.
async fn wrong_method(taken: Arc<HashMap<&'static str, String>>, request: Request) -> ApiError {
    let path = request.extensions().get::<MatchedPath>();
    let methods = path.and_then(|path| taken.get(path.as_str()));
    let takes = methods.map(|methods| format!("; it takes {methods}")).unwrap_or_default();
    let message = format!("{} does not take {}{takes}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, Some("method_not_allowed"), message)
}

async fn health(State(shelf): State<Arc<Shelf>>) -> Response {
    status(&shelf, OkWord)
}

/// `GET /ready`
async fn ready(State(shelf): State<Arc<Shelf>>) -> Response {
    status(&shelf, ReadyWord)
}

words! {
    OkWord = "ok";
    ReadyWord = "ready";
    StuckWord = "stuck";
}

/// How the server is.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Health<T> {
    status: T,
}

/// An engine that has work and does not go on.
#[derive(Serialize, JsonSchema)]
struct Stuck {
    #[serde(flatten)]
    error: ErrorBody,
    status: StuckWord,
    /// Since when.
    seconds: f64,
    /// Where it stands.
    phase: &'static str,
}

/// Answers with `word`, unless the server is stopping or its engine is stuck. While a model loads, other
/// routes answer.
fn status(shelf: &Shelf, word: impl Serialize) -> Response {
    if shelf.server.is_leaving() {
        return ApiError::stopping().into_response();
    }
    let life = shelf.life();
    match life::is_stuck(life) {
        true => stuck(life).into_response(),
        false => Json(Health { status: word }).into_response(),
    }
}

/// Reports the stall with its duration and phase as fields, for clients that do not parse the message.
fn stuck(life: Life) -> (StatusCode, Json<Stuck>) {
    let (seconds, phase) = (life.age.as_secs_f64(), life.phase.name());
    let message =
        format!("the engine has work and has not gone on for {seconds:.1} s; it stands in `{phase}`");
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Some("engine_stuck"), message);
    let seconds = (seconds * 10.0).round() / 10.0;
    (error.status(), Json(Stuck { error: (&error).into(), status: StuckWord, seconds, phase }))
}

/// `GET /metrics`
async fn metrics_text(State(shelf): State<Arc<Shelf>>, Extension(caller): Extension<Caller>) -> Response {
    let (metrics, apps) = (&shelf.server.metrics, shelf.open_apps());
    let _scrape = metrics.begin_scrape();
    metrics.life.set(shelf.life(), logging::dropped());
    metrics.memory.set_pending(apps.iter().map(|app| app.memory.pending.count()).sum());
    let name = |app: &App| (!shelf.has_one()).then(|| app.serving.model.name.clone());
    if !shelf.has_one() {
        metrics.shelf.set(shelf.list(&caller).iter().map(Listed::numbers));
    }
    metrics.ahead.set(apps.iter().map(|app| (name(app), app.serving.next_turns.counts())));
    let engines: Vec<_> = apps.iter().map(|app| (name(app), app.serving.engine.stats())).collect();
    match metrics.text(&engines) {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => ApiError::internal(format!("the metrics cannot be written: {error}")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::to_bytes, routing::get};
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_dialect_words_errors_in_its_own_shape() {
        let word: WordError = |error| json!({"type": "error", "text": error.to_string()});
        let errors = Arc::new(HashMap::from([("/own/{name}", word)]));
        let fail = || get(|| async { ApiError::field("x", "`x` is missing") });
        let router: Router = Router::new().route("/own/{name}", fail()).route("/usual", fail());
        let router = router.layer(middleware::from_fn_with_state(errors, word_in_dialect));
        let ask = async |path: &str| {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            assert_eq!(
                (response.status().as_u16(), &response.headers()["content-type"]),
                (400, &"application/json".parse().unwrap())
            );
            let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
            serde_json::from_slice::<Value>(&bytes).unwrap()
        };
        assert_eq!(ask("/own/a").await, json!({"type": "error", "text": "`x` is missing"}));
        assert_eq!(ask("/usual").await["error"]["param"], "x");
    }
}
