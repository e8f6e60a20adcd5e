//! Connections over real sockets: early answers, clients that half-close or disappear, many idle connections.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use axum::{
    Router,
    http::StatusCode,
    routing::{get, post},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::http::{ConnectionLimits, Front, serve};

const SECOND: Duration = Duration::from_secs(1);
/// Time for running answers when the server ends.
const DRAIN: Duration = Duration::from_secs(20);
/// Bytes of an answer of which the buffers of a connection hold a part only.
const LARGE: usize = 32 << 20;

/// Number of handlers that are running.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

struct Running;

impl Running {
    fn new() -> Running {
        RUNNING.fetch_add(1, Ordering::SeqCst);
        Running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Starts a server of plain routes with room for `max` connections.
async fn listen(max: usize) -> (SocketAddr, watch::Sender<bool>) {
    let (address, stop, _) = started(max).await;
    (address, stop)
}

/// The same, with the task that ends when the server does.
async fn started(max: usize) -> (SocketAddr, watch::Sender<bool>, JoinHandle<usize>) {
    let router = Router::new()
        .route("/quick", get(async || "quick"))
        .route("/early", post(async || StatusCode::UNAUTHORIZED))
        .route("/large", get(async || "x".repeat(LARGE)))
        .route(
            "/slow",
            post(async |body: String| {
                sleep(Duration::from_millis(400)).await;
                body
            }),
        )
        .route(
            "/endless",
            post(async |_: String| {
                let _running = Running::new();
                std::future::pending::<()>().await
            }),
        );
    let limits = ConnectionLimits { max, head_time: 60 * SECOND, write_time: 60 * SECOND, drain_time: DRAIN };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    (address, stop, tokio::spawn(serve(listener, Front::new(router), limits, stopped)))
}

fn request(method: &str, path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\n\r\n{body}")
}

/// Reads head and body of the next answer.
async fn answer(stream: &mut TcpStream) -> (String, String) {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(
            timeout(10 * SECOND, stream.read_u8()).await.expect("an answer in time").expect("an answer"),
        );
    }
    let head = String::from_utf8(bytes).unwrap().to_ascii_lowercase();
    let length =
        head.split("content-length: ").nth(1).map_or(0, |rest| rest.lines().next().unwrap().parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    (head, String::from_utf8(body).unwrap())
}

async fn ask(stream: &mut TcpStream, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).await.unwrap();
    answer(stream).await
}

#[tokio::test]
async fn a_connection_goes_on_after_an_answer_that_did_not_wait_for_the_body() {
    let (address, _stop) = listen(8).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    for bytes in [10, 100_000, 900_000] {
        let (head, _) = ask(&mut stream, &request("POST", "/early", "", &"x".repeat(bytes))).await;
        assert!(head.starts_with("http/1.1 401") && !head.contains("connection: close"), "{bytes}: {head}");
        let (head, body) = ask(&mut stream, &request("GET", "/quick", "", "")).await;
        assert!(head.starts_with("http/1.1 200") && body == "quick", "{bytes}: {head}");
    }
}

#[tokio::test]
async fn a_body_that_is_too_much_to_read_ends_the_connection_and_the_answer_says_so() {
    let (address, _stop) = listen(8).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let announced = "POST /early HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9000000000\r\n\r\n";
    stream.write_all(announced.as_bytes()).await.unwrap();
    // Continues to send for a while, like clients that read only after sending everything.
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..8 {
        stream.write_all(&piece).await.expect("the server takes what comes");
    }
    let (head, _) = answer(&mut stream).await;
    assert!(head.starts_with("http/1.1 401") && head.contains("connection: close"), "{head}");
}

/// Half a head took 400 KiB on each connection, before any key was asked for.
#[tokio::test]
async fn a_head_has_a_limit_and_one_beyond_it_is_answered_before_it_ends() {
    let (address, _stop) = listen(8).await;
    let head =
        |bytes: usize| format!("GET /quick HTTP/1.1\r\nhost: localhost\r\nx-long: {}", "x".repeat(bytes));
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (answered, body) = ask(&mut stream, &format!("{}\r\n\r\n", head(60 << 10))).await;
    assert!(answered.starts_with("http/1.1 200") && body == "quick", "{answered}");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (refused, _) = ask(&mut stream, &head(100 << 10)).await;
    assert!(refused.starts_with("http/1.1 431"), "{refused}");
}

#[tokio::test]
async fn a_client_that_waits_to_be_told_to_go_on_is_answered_at_once() {
    let (address, _stop) = listen(8).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let waiting =
        "POST /early HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
    let (head, _) = ask(&mut stream, waiting).await;
    assert!(head.starts_with("http/1.1 401") && head.contains("connection: close"), "{head}");
}

#[tokio::test]
async fn a_client_that_closes_its_half_gets_its_answer() {
    let (address, _stop) = listen(8).await;
    for path in ["/slow", "/early"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request("POST", path, "", "said").as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut text = String::new();
        timeout(10 * SECOND, stream.read_to_string(&mut text)).await.unwrap().unwrap();
        let whole = text.replace("HTTP/1.1 100 Continue\r\n\r\n", "");
        match path {
            "/slow" => assert!(whole.starts_with("HTTP/1.1 200") && whole.ends_with("said"), "{text}"),
            _ => assert!(whole.starts_with("HTTP/1.1 401"), "{text}"),
        }
    }
}

/// Asks for an answer, and reads nothing of it yet.
async fn asked(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    timeout(10 * SECOND, stream.readable()).await.unwrap().unwrap();
    stream
}

/// Reads a large answer to its end after a while, in which all of it is ready and most of it is unsent.
async fn check_large(mut stream: TcpStream, of: &str) {
    sleep(Duration::from_millis(300)).await;
    let mut bytes = Vec::new();
    let read = timeout(10 * SECOND, stream.read_to_end(&mut bytes)).await.unwrap();
    assert!(read.is_ok() && bytes.len() > LARGE, "{of}: {} bytes, {read:?}", bytes.len());
}

/// An answer counted as sent once it was in a buffer; what the client had not read by then was cut off.
#[tokio::test]
async fn a_large_answer_is_sent_to_its_end_whatever_ends_its_connection() {
    let large = |headers: &str| request("GET", "/large", headers, "");
    let (address, _stop) = listen(8).await;
    let mut stream = asked(address, &large("")).await;
    stream.shutdown().await.unwrap();
    check_large(stream, "its client has closed its half").await;
    let early = large("").replace("content-length: 0", "content-length: 9000000000");
    check_large(asked(address, &early).await, "its request has a body that does not come").await;

    let (address, _stop) = listen(1).await;
    let stream = asked(address, &large("")).await;
    let mut newcomer = TcpStream::connect(address).await.unwrap();
    check_large(stream, "another client waits").await;
    let (head, _) = ask(&mut newcomer, &request("GET", "/quick", "", "")).await;
    assert!(head.starts_with("http/1.1 200"), "{head}");

    let old = large("").replace("HTTP/1.1", "HTTP/1.0");
    for request in [large(""), large("connection: close\r\n"), old] {
        let (address, stop) = listen(8).await;
        let stream = asked(address, &request).await;
        stop.send(true).unwrap();
        check_large(stream, &request).await;
    }
}

#[tokio::test]
async fn a_server_that_ends_does_not_wait_for_half_a_head() {
    let (address, stop, served) = started(8).await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    silent.write_all(b"GET / HT").await.unwrap();
    let (head, _) =
        ask(&mut TcpStream::connect(address).await.unwrap(), &request("GET", "/quick", "", "")).await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    stop.send(true).unwrap();
    assert_eq!(timeout(DRAIN / 2, served).await.expect("no answer runs").unwrap(), 0);
}

#[tokio::test]
async fn the_end_may_come_together_with_the_body() {
    let (address, _stop) = listen(8).await;
    for _ in 0..10 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = request("POST", "/slow", "", &"said".repeat(1000));
        let (head, body) = request.split_at(request.find("said").unwrap());
        stream.write_all(head.as_bytes()).await.unwrap();
        sleep(Duration::from_millis(20)).await;
        stream.write_all(body.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut text = String::new();
        timeout(10 * SECOND, stream.read_to_string(&mut text)).await.unwrap().unwrap();
        assert!(text.ends_with(body), "{text:?}");
    }
    let mut broken_off = TcpStream::connect(address).await.unwrap();
    broken_off
        .write_all(b"POST /slow HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nsai")
        .await
        .unwrap();
    broken_off.shutdown().await.unwrap();
    let mut text = String::new();
    timeout(10 * SECOND, broken_off.read_to_string(&mut text)).await.unwrap().unwrap();
    assert!(!text.contains("200 OK"), "{text}");
}

#[tokio::test]
async fn idle_connections_make_room_and_the_work_of_a_client_that_has_gone_ends() {
    let (address, _stop) = listen(4).await;
    let mut busy = TcpStream::connect(address).await.unwrap();
    busy.write_all(request("POST", "/endless", "", "{}").as_bytes()).await.unwrap();
    while RUNNING.load(Ordering::SeqCst) == 0 {
        sleep(Duration::from_millis(5)).await;
    }
    let mut idle = Vec::new();
    for i in 0..40 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        if i % 2 == 1 {
            stream.write_all(b"POST /early HT").await.unwrap();
        }
        idle.push(stream);
    }
    let mut newcomer = TcpStream::connect(address).await.unwrap();
    let (head, _) = timeout(5 * SECOND, ask(&mut newcomer, &request("GET", "/quick", "", ""))).await.unwrap();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert_eq!(RUNNING.load(Ordering::SeqCst), 1, "what is being answered stays");

    drop(busy);
    let deadline = Instant::now() + 10 * SECOND;
    while RUNNING.load(Ordering::SeqCst) > 0 {
        assert!(Instant::now() < deadline, "the work of a client that has gone goes on");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_connection_from_the_time_of_loading_is_answered_afterwards() {
    let loading = Router::new().fallback(async || StatusCode::SERVICE_UNAVAILABLE);
    let front = Front::new(loading);
    let limits =
        ConnectionLimits { max: 4, head_time: 60 * SECOND, write_time: 60 * SECOND, drain_time: SECOND };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(serve(listener, front.clone(), limits, stopped));
    let quick = request("GET", "/quick", "", "");
    assert!(ask(&mut stream, &quick).await.0.starts_with("http/1.1 503"));
    front.replace(Router::new().route("/quick", get(async || "quick")));
    assert!(ask(&mut stream, &quick).await.0.starts_with("http/1.1 200"));
}
