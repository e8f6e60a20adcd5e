//! A local web server that answers by a script, and the answers of a model hub.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct WebRequest {
    /// Path and query.
    pub path: String,
    /// All header lines, with the names in lower case.
    head: String,
}

impl WebRequest {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// Range of the requested bytes in a body of `len` bytes: the first byte, and the one after the last.
    pub fn range(&self, len: usize) -> Option<(usize, usize)> {
        let (from, to) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let end = to.parse().map_or(len, |last: usize| len.min(last + 1));
        Some((from.parse().ok()?, end))
    }
}

/// An answer to a request.
#[derive(Debug, Clone)]
pub struct WebAnswer {
    status: &'static str,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// Bytes of the body that are sent before the connection is closed.
    pub sent: usize,
    /// Pause before each 16 KiB of the body.
    pub pause: Duration,
    /// True if the length of the body is announced; otherwise it ends with the connection.
    has_length: bool,
}

impl WebAnswer {
    /// Creates an answer with a status such as `404 Not Found`.
    pub fn new(status: &'static str, body: &[u8]) -> WebAnswer {
        let (headers, body) = (Vec::new(), body.to_vec());
        WebAnswer { status, headers, sent: body.len(), body, pause: Duration::ZERO, has_length: true }
    }

    /// Omits the length.
    pub fn without_length(self) -> WebAnswer {
        WebAnswer { has_length: false, ..self }
    }

    /// Adds a header.
    pub fn with(mut self, name: &str, value: impl Into<String>) -> WebAnswer {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Answers with the requested range of `content`, like servers that support ranges.
    pub fn of(request: &WebRequest, content: &[u8]) -> WebAnswer {
        match request.range(content.len()) {
            None => WebAnswer::new("200 OK", content),
            Some((from, end)) if from < end => {
                let range = format!("bytes {from}-{}/{}", end - 1, content.len());
                WebAnswer::new("206 Partial Content", &content[from..end]).with("content-range", range)
            }
            Some(_) => WebAnswer::new("416 Range Not Satisfiable", b""),
        }
    }
}

/// A web server that runs until the process ends.
#[derive(Debug)]
pub struct Web {
    /// `http://127.0.0.1:PORT`
    pub url: String,
    seen: Arc<Mutex<Vec<WebRequest>>>,
}

impl Web {
    /// Answers each request with the result of `script`.
    ///
    /// # Panics
    /// If no local port is free.
    pub fn serve(script: impl Fn(&WebRequest) -> WebAnswer + Send + Sync + 'static) -> Web {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of this machine");
        let url = format!("http://{}", listener.local_addr().expect("a bound port"));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, script) = (seen.clone(), Arc::new(script));
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (log, script) = (log.clone(), script.clone());
                thread::spawn(move || {
                    let Some(request) = read_request(&mut stream) else { return };
                    log.lock().expect("scripts do not panic").push(request.clone());
                    let _ = respond(&mut stream, &script(&request));
                });
            }
        });
        Web { url, seen }
    }

    /// All requests so far.
    ///
    /// # Panics
    /// If a script has panicked.
    pub fn seen(&self) -> Vec<WebRequest> {
        self.seen.lock().expect("scripts do not panic").clone()
    }
}

fn read_request(stream: &mut TcpStream) -> Option<WebRequest> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    let path = head.split(' ').nth(1)?.to_owned();
    // Header names are case-insensitive; values are kept as they are.
    let lower = |line: &str| match line.split_once(": ") {
        Some((name, value)) => format!("{}: {value}", name.to_ascii_lowercase()),
        None => line.to_owned(),
    };
    Some(WebRequest { path, head: head.lines().map(lower).collect::<Vec<_>>().join("\n") })
}

fn respond(stream: &mut TcpStream, answer: &WebAnswer) -> std::io::Result<()> {
    let WebAnswer { status, headers, body, sent, pause, has_length } = answer;
    let mut head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n");
    if *has_length {
        head += &format!("content-length: {}\r\n", body.len());
    }
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    for piece in body[..*sent].chunks(16 << 10) {
        thread::sleep(*pause);
        stream.write_all(piece)?;
    }
    Ok(())
}

/// Path, content and SHA-256 of a file; a hub lists no hash for small files.
pub type WebFile = (&'static str, Arc<[u8]>, Option<String>);

/// A repository of a hub at one commit.
#[derive(Debug, Clone)]
pub struct WebRepository {
    /// `owner/repo`
    pub name: &'static str,
    /// Id of the commit.
    pub commit: &'static str,
    /// Files of the repository.
    pub files: Vec<WebFile>,
}

impl WebRepository {
    /// Answers on the hub's routes of this repository, and with 404 on others.
    pub fn answer(&self, request: &WebRequest) -> WebAnswer {
        let WebRepository { name, commit, .. } = self;
        let path = request.path.as_str();
        let listings = ["", "/revision/main", &format!("/revision/{commit}")];
        if listings.iter().any(|at| path == format!("/api/models/{name}{at}?blobs=true")) {
            return WebAnswer::new("200 OK", self.listing().as_bytes());
        }
        let file = self.files.iter().find(|(file, ..)| {
            [*commit, "main"].iter().any(|revision| path == format!("/{name}/resolve/{revision}/{file}"))
        });
        match file {
            Some((_, content, _)) => WebAnswer::of(request, content),
            None => WebAnswer::new("404 Not Found", b""),
        }
    }

    fn listing(&self) -> String {
        let files = self.files.iter().map(|(path, content, sha256)| {
            let size = content.len();
            let lfs = sha256.as_ref().map_or(String::new(), |sha256| {
                format!(r#", "lfs": {{"sha256": "{sha256}", "size": {size}}}"#)
            });
            format!(r#"{{"rfilename": "{path}", "size": {size}{lfs}}}"#)
        });
        let files = files.collect::<Vec<_>>().join(", ");
        format!(r#"{{"sha": "{}", "siblings": [{files}]}}"#, self.commit)
    }
}
