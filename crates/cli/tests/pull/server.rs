//! A small HTTP server for tests: it answers as a closure says, can break off or stall in the
//! middle of a body, and remembers what it was asked.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a client asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// Where the wanted range starts.
    pub from: Option<usize>,
    pub authorization: Option<String>,
}

/// What the server answers.
#[derive(Default, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// Closes the connection after this many bytes of the body.
    pub cut_after: Option<usize>,
    /// Waits so long before each 64 KiB of the body.
    pub slow: Option<Duration>,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub fn ok(body: &[u8]) -> Self {
        Self { status: 200, body: body.to_vec(), ..Self::default() }
    }

    /// `body` from where the request wants it.
    pub fn ranged(request: &Request, body: &[u8]) -> Self {
        match request.from {
            None => Self::ok(body),
            Some(from) if from >= body.len() => Self::status(416),
            Some(from) => {
                let range = format!("bytes {from}-{}/{}", body.len() - 1, body.len());
                let reply = Self { status: 206, body: body[from..].to_vec(), ..Self::default() };
                reply.with("content-range", range)
            }
        }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// A running server; it serves until the test's process ends.
pub struct Server {
    pub url: String,
    log: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers every request, the n-th of all (from 0), as `answer` says.
    pub fn start(answer: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (log.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, answer) = (seen.clone(), answer.clone());
                std::thread::spawn(move || {
                    // A client that goes away is no concern of the server's.
                    let _ = serve(stream, &seen, &*answer);
                });
            }
        });
        Self { url, log }
    }

    /// Everything asked so far.
    pub fn requests(&self) -> Vec<Request> {
        self.log.lock().unwrap().clone()
    }

    /// Where the wanted ranges of the GET requests for `path` started.
    pub fn gets(&self, path: &str) -> Vec<Option<usize>> {
        let of_path = |r: &Request| r.method == "GET" && r.path == path;
        self.requests().into_iter().filter(of_path).map(|r| r.from).collect()
    }
}

fn serve(
    stream: TcpStream,
    log: &Mutex<Vec<Request>>,
    answer: &(impl Fn(usize, &Request) -> Reply + ?Sized),
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    while let Some(request) = read_request(&mut reader)? {
        let number = {
            let mut log = log.lock().unwrap();
            log.push(request.clone());
            log.len() - 1
        };
        let reply = answer(number, &request);
        let mut head =
            format!("HTTP/1.1 {} X\r\ncontent-length: {}\r\n", reply.status, reply.body.len());
        for (name, value) in &reply.headers {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        if request.method == "HEAD" {
            continue;
        }
        let end = reply.cut_after.unwrap_or(reply.body.len()).min(reply.body.len());
        for piece in reply.body[..end].chunks(1 << 16) {
            if let Some(pause) = reply.slow {
                std::thread::sleep(pause);
            }
            stream.write_all(piece)?;
        }
        if reply.cut_after.is_some() {
            return stream.shutdown(Shutdown::Both);
        }
    }
    Ok(())
}

fn read_request(reader: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_string);
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(None) };
    let mut request = Request { method, path, from: None, authorization: None };
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        match name.to_lowercase().as_str() {
            "range" => {
                let digits = value.trim_start_matches("bytes=").trim_end_matches('-');
                request.from = digits.parse().ok();
            }
            "authorization" => request.authorization = Some(value.to_string()),
            _ => {}
        }
    }
    Ok(Some(request))
}
