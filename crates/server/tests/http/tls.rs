//! HTTPS, with a certificate made for these tests (for localhost, until 2126; its key is no secret).

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use dunlin_server::{Config, Tls};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

use crate::{
    client::{Answer, request},
    fake::Server,
};

fn file(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

fn server() -> Server {
    let tls = Tls::from_files(&file("cert.pem"), &file("key.pem")).unwrap();
    Server::with(Config {
        tls: Some(tls),
        header_timeout: Duration::from_millis(400),
        ..Config::default()
    })
}

/// A client that trusts this certificate alone.
fn connect(server: &Server, trusted: &str) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file(trusted)).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(connection, server.connect())
}

/// What a client that trusts the certificate is answered.
fn ask(server: &Server, bytes: &[u8]) -> Answer {
    let mut stream = connect(server, "cert.pem");
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Answer::parse(&answer)
}

#[test]
fn answers_and_streams_are_those_of_plain_http() {
    let (secure, plain) = (server(), Server::new());
    for body in [r#"{"prompt":"a"}"#, r#"{"prompt":"a","stream":true}"#] {
        let bytes = request("POST", "/v1/completions", &[], body.as_bytes());
        let (a, b) = (ask(&secure, &bytes), plain.raw(&bytes));
        assert_eq!((a.status, a.text()), (200, b.text()));
    }
}

#[test]
fn those_who_speak_no_tls_are_let_go() {
    let server = server();
    // Plain HTTP, and silence.
    for bytes in [&request("GET", "/health", &[], b"")[..], b""] {
        let mut stream: TcpStream = server.connect();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(ask(&server, &request("GET", "/health", &[], b"")).status, 200);
}

#[test]
fn files_that_cannot_be_used_are_told() {
    let problem = |certificates: &str, key: &str| {
        Tls::from_files(&file(certificates), &file(key)).unwrap_err().to_string()
    };
    assert!(problem("nowhere.pem", "key.pem").contains("certificates"));
    assert!(problem("key.pem", "key.pem").contains("it holds none"));
    assert!(problem("cert.pem", "cert.pem").contains("private key"));
}

#[test]
fn certificates_are_renewed_and_connections_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let put = |name: &str, into: &Path| fs::write(into, fs::read(file(name)).unwrap()).unwrap();
    put("cert.pem", &cert);
    put("key.pem", &key);
    let tls = Tls::from_files(&cert, &key).unwrap();
    let server = Server::with(Config { tls: Some(tls.clone()), ..Config::default() });
    let health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let healthy = |stream: &mut StreamOwned<ClientConnection, TcpStream>| {
        stream.write_all(health)?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer)?;
        let ok = answer == *b"HTTP/1.1 200";
        // The rest of the answer, so that the next one can be read.
        let mut rest = Vec::new();
        while !rest.ends_with(b"\"ok\"}") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            rest.extend(byte);
        }
        std::io::Result::Ok(ok)
    };
    let mut old = connect(&server, "cert.pem");
    assert!(healthy(&mut old).unwrap());
    // A key without its certificate: what was shown is shown still.
    put("key2.pem", &key);
    assert!(matches!(tls.reload(), Err(dunlin_server::TlsError::Pair(_))));
    assert!(healthy(&mut connect(&server, "cert.pem")).unwrap());
    put("cert2.pem", &cert);
    #[cfg(unix)]
    {
        let pid = std::process::id().to_string();
        assert!(
            std::process::Command::new("kill").args(["-HUP", &pid]).status().unwrap().success()
        );
    }
    #[cfg(not(unix))]
    tls.reload().unwrap();
    let started = Instant::now();
    while !healthy(&mut connect(&server, "cert2.pem")).unwrap_or(false) {
        assert!(started.elapsed() < Duration::from_secs(20), "the new certificate is not shown");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(healthy(&mut connect(&server, "cert.pem")).is_err(), "the old one is shown no more");
    assert!(healthy(&mut old).unwrap(), "what was open goes on");
}
