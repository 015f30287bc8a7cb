//! HTTPS, with a certificate made for these tests (for localhost, until 2126; its key is no secret).

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    sync::Arc,
    time::Duration,
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

/// What a client that trusts the certificate is answered.
fn ask(server: &Server, bytes: &[u8]) -> Answer {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("cert.pem")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, server.connect());
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
