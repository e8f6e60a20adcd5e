//! A client of the server's routes, which are in this process or at a server: the terminal sends the same requests to
//! both, so that there is one path for all turns.

mod error;
mod interrupts;
mod stream;
mod transport;

use std::time::Duration;

use anyhow::Context;
use axum::{Router, body::to_bytes, http::Method, response::Response};
use serde_json::{Value, json};
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};
use tokio_stream::StreamExt;

pub(crate) use error::AskError;
use interrupts::Interrupts;
pub(crate) use interrupts::{INTERRUPTED, Turn};
pub(crate) use stream::{Answer, AnswerPiece, Answered};
use stream::{EventReader, Reading};
pub(crate) use transport::address_of;
use transport::{HttpServer, Transport};

/// Maximum bytes of a response as a whole: a conversation has at most an eighth.
const RESPONSE_BYTES_MAX: usize = 256 << 20;

/// The routes, and the threads that requests run on.
pub(crate) struct Client {
    runtime: Runtime,
    transport: Transport,
    interrupts: Interrupts,
}

impl Client {
    /// A client of routes in this process, which run on the threads of `runtime`.
    pub(crate) fn in_process(runtime: Runtime, router: Router) -> Client {
        Client::new(runtime, Transport::InProcess(router))
    }

    /// A client of the server at this address.
    pub(crate) fn of_server(url: &str, key: Option<&str>) -> anyhow::Result<Client> {
        let server = HttpServer::new(url, key)?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.context("the thread of requests cannot be started")?;
        Ok(Client::new(runtime, Transport::Http(Box::new(server))))
    }

    /// Installs a handler of Ctrl-C that stops the running answer, or the program outside a [`Turn`].
    fn new(runtime: Runtime, transport: Transport) -> Client {
        let interrupts = Interrupts::handled_in(&runtime);
        Client { runtime, transport, interrupts }
    }

    /// A turn of a conversation begins: until it is dropped Ctrl-C stops an answer, and not the program.
    pub(crate) fn turn(&self) -> Turn {
        self.interrupts.turn()
    }

    /// Stops the running answer, as Ctrl-C does.
    pub(crate) fn stop(&self) {
        self.interrupts.take();
    }

    /// Requests a route, with a JSON body or none, and returns the JSON of its answer.
    pub(crate) fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, AskError> {
        self.parsed(&self.text(method, path, body)?)
    }

    /// [`Client::call`] of a route that computes nothing, which is given up after `patience`.
    pub(crate) fn read_within(&self, patience: Duration, path: &str) -> Result<Value, AskError> {
        let url = || self.transport.url().unwrap_or_default().to_owned();
        let asked = async { timeout(patience, self.ask(Method::GET, path, None)).await };
        let text = self.runtime.block_on(asked).map_err(|_| AskError::Silent { url: url() })?;
        self.parsed(&text?)
    }

    /// Requests a route, and returns its answer as text.
    pub(crate) fn text(&self, method: Method, path: &str, body: Option<&Value>) -> Result<String, AskError> {
        self.runtime.block_on(self.ask(method, path, body))
    }

    /// Requests a streamed answer to a body of this route; `show` is called with every piece as it arrives.
    pub(crate) fn answer(
        &self,
        path: &str,
        mut body: Value,
        show: &mut dyn FnMut(AnswerPiece<'_>),
    ) -> Result<Answered, AskError> {
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let turn = self.turn();
        self.runtime.block_on(async {
            tokio::select! {
                answer = self.stream(path, &body, show) => answer.map(Answered::Whole),
                // Returning drops the response, and with it the connection to a server, which ends the work at the
                // engine's next step.
                () = turn.interrupted() => Ok(Answered::Stopped),
            }
        })
    }

    async fn stream(
        &self,
        path: &str,
        body: &Value,
        show: &mut dyn FnMut(AnswerPiece<'_>),
    ) -> Result<Answer, AskError> {
        let mut reading = Reading::begin();
        let response = self.send(Method::POST, path, Some(body)).await?;
        let mut bytes = response.into_body().into_data_stream();
        let mut events = EventReader::default();
        while let Some(bytes) = bytes.next().await {
            for event in events.push(&bytes.map_err(|_| self.transport.cut_off())?) {
                if event == "[DONE]" {
                    return Ok(reading.end());
                }
                reading.take(self.parsed(&event)?, show)?;
            }
            if events.is_too_long() {
                return Err(self.transport.foreign());
            }
        }
        Err(self.transport.cut_off())
    }

    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<String, AskError> {
        self.whole(self.send(method, path, body).await?).await
    }

    /// The response to a request; an error if it was refused.
    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Response, AskError> {
        let response = self.transport.send(method, path, body).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = self.whole(response).await?;
        Err(self.transport.refused(status, &body))
    }

    /// The text of a whole response.
    async fn whole(&self, response: Response) -> Result<String, AskError> {
        let bytes = to_bytes(response.into_body(), RESPONSE_BYTES_MAX).await;
        let bytes = bytes.map_err(|_| self.transport.cut_off())?;
        String::from_utf8(bytes.into()).map_err(|_| self.transport.foreign())
    }

    /// The error of an answer that kvik does not give.
    pub(crate) fn foreign(&self) -> AskError {
        self.transport.foreign()
    }

    fn parsed(&self, text: &str) -> Result<Value, AskError> {
        serde_json::from_str(text).map_err(|_| self.transport.foreign())
    }
}
