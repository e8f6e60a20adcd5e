//! HTTP and cryptography for `object_store`, which has none of its own without a C compiler.

use std::fmt;
use std::io;

use async_trait::async_trait;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::{BodyExt, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as Tcp;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{
    CryptoProvider, DigestAlgorithm, DigestContext, HmacContext, HttpClient, HttpConnector, HttpError,
    HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody, HttpService, Signer,
    SigningAlgorithm,
};
use rustls::ClientConfig;
use sha2::{Digest, Sha256};

use super::ANSWER_BYTES_MAX;

/// Creates clients with this TLS configuration.
#[derive(Debug)]
pub(super) struct Connector(pub(super) ClientConfig);

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(self.0.clone())
            .https_or_http()
            .enable_http1()
            .build();
        let mut builder = Client::builder(TokioExecutor::new());
        Ok(HttpClient::new(Http(builder.pool_timer(TokioTimer::new()).build(https))))
    }
}

struct Http(Client<HttpsConnector<Tcp>, HttpRequestBody>);

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Http")
    }
}

#[async_trait]
impl HttpService for Http {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = self.0.request(request).await.map_err(|error| {
            let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Interrupted };
            HttpError::new(kind, error)
        })?;
        Ok(answer.map(|body| {
            // Lists and errors are collected whole, after as many bytes were reserved as they announce.
            let bounded = Limited::new(body, ANSWER_BYTES_MAX);
            let failed = |error| HttpError::new_boxed(HttpErrorKind::Interrupted, error);
            HttpResponseBody::new(bounded.map_err(failed))
        }))
    }
}

/// The algorithms for signing requests: SHA-256, and HMAC with it.
#[derive(Debug)]
pub(super) struct Cryptography;

impl CryptoProvider for Cryptography {
    fn digest(&self, _algorithm: DigestAlgorithm) -> object_store::Result<Box<dyn DigestContext>> {
        Ok(Box::new(Hashing { state: Sha256::new(), result: [0; 32] }))
    }

    fn hmac(&self, _algorithm: DigestAlgorithm, secret: &[u8]) -> object_store::Result<Box<dyn HmacContext>> {
        let state =
            Hmac::<Sha256>::new_from_slice(secret).map_err(|_| unsupported("this length of a secret"))?;
        Ok(Box::new(Hashing { state, result: [0; 32] }))
    }

    fn sign(&self, _algorithm: SigningAlgorithm, _pem: &[u8]) -> object_store::Result<Box<dyn Signer>> {
        Err(unsupported("signing with RSA"))
    }
}

fn unsupported(what: &str) -> object_store::Error {
    object_store::Error::NotSupported {
        source: Box::new(io::Error::other(format!("{what} is not supported"))),
    }
}

struct Hashing<S> {
    state: S,
    result: [u8; 32],
}

impl DigestContext for Hashing<Sha256> {
    fn update(&mut self, data: &[u8]) {
        Digest::update(&mut self.state, data);
    }

    fn finish(&mut self) -> object_store::Result<&[u8]> {
        self.result = self.state.finalize_reset().into();
        Ok(&self.result)
    }
}

impl HmacContext for Hashing<Hmac<Sha256>> {
    fn update(&mut self, data: &[u8]) {
        Mac::update(&mut self.state, data);
    }

    fn finish(&mut self) -> object_store::Result<&[u8]> {
        self.result = self.state.clone().finalize().into_bytes().into();
        Ok(&self.result)
    }
}
