//! Settings of the server.

use std::time::Duration;

use crate::tls::Tls;

/// Somebody who shares nothing with others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// The name.
    pub name: String,
    /// SHA-256 of the keys.
    pub key_hashes: Vec<[u8; 32]>,
    /// Requests that generate or wait to, at once.
    pub max_requests: Option<usize>,
}

/// What may call, how much, and for how long.
#[derive(Debug, Clone)]
pub struct Config {
    /// Keys of which a request must bring one; none, and no tenants, lets everybody in.
    pub api_keys: Vec<String>,
    /// Who else may call, by keys of their own. They share nothing, and nothing with those who bring
    /// one of `api_keys`; the first is tenant 1.
    pub tenants: Vec<Tenant>,
    /// What the server shows its clients; none speaks plain HTTP.
    pub tls: Option<Tls>,
    /// Origins whose web pages may call, `*` for all. Pages served by this server always may.
    pub cors_origins: Vec<String>,
    /// Connections held at once; more wait to be accepted.
    pub max_connections: usize,
    /// Requests that generate or wait to, at once; more are told to come back.
    pub max_requests: usize,
    /// Bytes of a request's body.
    pub max_body_bytes: usize,
    /// Bytes of a request's line and headers together.
    pub max_header_bytes: usize,
    /// How long a client may take to send its headers.
    pub header_timeout: Duration,
    /// How long a client may take to send its body.
    pub body_timeout: Duration,
    /// How long a client may take nothing of an answer that is there.
    pub write_timeout: Duration,
    /// How long an answer may take; none has no limit.
    pub request_timeout: Option<Duration>,
    /// A stream that has been silent for so long says that it is alive.
    pub keep_alive: Duration,
    /// How long requests may go on after the server was asked to stop.
    pub drain_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            api_keys: Vec::new(),
            tenants: Vec::new(),
            tls: None,
            cors_origins: Vec::new(),
            max_connections: 4096,
            max_requests: 512,
            max_body_bytes: 16 << 20,
            max_header_bytes: 64 << 10,
            header_timeout: Duration::from_secs(15),
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            request_timeout: None,
            keep_alive: Duration::from_secs(15),
            drain_timeout: Duration::from_secs(30),
        }
    }
}
