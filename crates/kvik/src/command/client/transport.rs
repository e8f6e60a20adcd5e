//! The way of a request to the routes: to a router in this process, or over HTTP to a server.

use std::time::Duration;

use anyhow::Context;
use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Method, Request, StatusCode, Uri, header},
    response::Response,
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client as Pool, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;
use tower::ServiceExt;

use super::error::AskError;

/// How long a connection may take.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Where requests go.
pub(super) enum Transport {
    /// To the routes over a model in this process.
    InProcess(Router),
    /// To a server.
    Http(Box<HttpServer>),
}

/// A server, as a client reaches it.
pub(super) struct HttpServer {
    url: String,
    authorization: Option<HeaderValue>,
    connections: Connections,
}

enum Connections {
    Plain(Pool<HttpConnector, Body>),
    Tls(Pool<HttpsConnector<HttpConnector>, Body>),
}

impl HttpServer {
    pub(super) fn new(url: &str, key: Option<&str>) -> anyhow::Result<HttpServer> {
        let connections = match address_of(url)?.scheme_str() {
            Some("https") => Connections::Tls(Pool::builder(TokioExecutor::new()).build(https()?)),
            _ => Connections::Plain(Pool::builder(TokioExecutor::new()).build(connector())),
        };
        let authorization = key.map(|key| {
            let mut value = HeaderValue::try_from(format!("Bearer {key}"))?;
            value.set_sensitive(true);
            anyhow::Ok(value)
        });
        let authorization = authorization.transpose().context("the key has characters that no header has")?;
        Ok(HttpServer { url: url.trim_end_matches('/').to_owned(), authorization, connections })
    }

    async fn send(&self, request: Request<Body>) -> Result<Response, AskError> {
        let sent = match &self.connections {
            Connections::Plain(pool) => pool.request(request).await,
            Connections::Tls(pool) => pool.request(request).await,
        };
        match sent {
            Ok(response) => Ok(response.map(Body::new)),
            Err(error) if error.is_connect() => {
                Err(AskError::Unreachable { url: self.url.clone(), source: Box::new(error) })
            }
            Err(_) => Err(AskError::CutOff { url: self.url.clone() }),
        }
    }
}

/// The address of a server, which has a host and the scheme `http` or `https`.
pub(crate) fn address_of(url: &str) -> Result<Uri, AskError> {
    let is_of_server = |uri: &Uri| {
        uri.host().is_some_and(|host| !host.is_empty()) && matches!(uri.scheme_str(), Some("http" | "https"))
    };
    let uri = url.parse::<Uri>().ok().filter(is_of_server);
    uri.ok_or_else(|| AskError::BadAddress { url: url.to_owned() })
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT_TIME));
    connector.set_nodelay(true);
    connector
}

fn https() -> anyhow::Result<HttpsConnector<HttpConnector>> {
    let mut connector = connector();
    connector.enforce_http(false);
    let builder = HttpsConnectorBuilder::new().with_tls_config(kvik_shelf::tls::client()?);
    Ok(builder.https_only().enable_http1().wrap_connector(connector))
}

impl Transport {
    /// The address of the server, if it is one.
    pub(super) fn url(&self) -> Option<&str> {
        match self {
            Transport::InProcess(_) => None,
            Transport::Http(server) => Some(&server.url),
        }
    }

    /// The response to a request with a JSON body or none, whatever its status.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response, AskError> {
        let uri = format!("{}{path}", self.url().unwrap_or_default());
        let mut request = Request::builder().method(method).uri(uri);
        request = request.header(header::CONTENT_TYPE, "application/json");
        if let Transport::Http(server) = self
            && let Some(value) = &server.authorization
        {
            request = request.header(header::AUTHORIZATION, value);
        }
        let request = request.body(body.map_or_else(Body::empty, |body| Body::from(body.to_string())))?;
        match self {
            Transport::InProcess(router) => {
                let Ok(response) = router.clone().oneshot(request).await;
                Ok(response)
            }
            Transport::Http(server) => server.send(request).await,
        }
    }

    /// The error of a response that broke off.
    pub(super) fn cut_off(&self) -> AskError {
        match self.url() {
            Some(url) => AskError::CutOff { url: url.to_owned() },
            None => AskError::Incomplete,
        }
    }

    /// The error of a response that kvik does not give.
    pub(super) fn foreign(&self) -> AskError {
        AskError::Foreign { url: self.url().unwrap_or_default().to_owned() }
    }

    /// The error of a response with another status than success.
    pub(super) fn refused(&self, status: StatusCode, body: &str) -> AskError {
        AskError::refused(self.url(), status, body)
    }
}
