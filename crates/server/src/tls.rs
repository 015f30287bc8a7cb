//! TLS in front of a connection.
//!
//! Certificates end, and others take their place in the same files: new connections are shown those
//! as soon as they are there, those that are open go on as they began.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::net::TcpStream;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
    server::TlsStream,
};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(10);

/// Files that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificates.
    #[error("the file of certificates cannot be used: {0}")]
    Certificates(String),
    /// The key.
    #[error("the file of the private key cannot be used: {0}")]
    Key(String),
    /// Both, together.
    #[error("certificate and key cannot be used: {0}")]
    Pair(String),
}

/// What a server shows its clients. Clones are the same one.
#[derive(Clone)]
pub struct Tls(Arc<Shown>);

struct Shown {
    certificates: PathBuf,
    key: PathBuf,
    now: Mutex<Now>,
}

struct Now {
    acceptor: TlsAcceptor,
    /// The files as they were last read, whether or not they could be used.
    read: Marks,
}

/// When files were last written, and how long they were.
type Marks = [Option<(SystemTime, u64)>; 2];

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// From files in PEM: a chain of certificates, the server's own first, and its private key.
    ///
    /// # Errors
    /// Files that cannot be read, that hold no such thing, or that do not belong together.
    pub fn from_files(certificates: &Path, key: &Path) -> Result<Self, TlsError> {
        let read = marks(certificates, key);
        let acceptor = acceptor(certificates, key)?;
        let now = Mutex::new(Now { acceptor, read });
        Ok(Self(Arc::new(Shown { certificates: certificates.into(), key: key.into(), now })))
    }

    /// Reads the files again and shows what they hold to those who connect from now on.
    ///
    /// # Errors
    /// As [`Tls::from_files`]; what was shown before is shown still.
    pub fn reload(&self) -> Result<(), TlsError> {
        let Shown { certificates, key, .. } = &*self.0;
        let read = marks(certificates, key);
        let acceptor = acceptor(certificates, key);
        let mut now = self.now();
        now.read = read;
        now.acceptor = acceptor?;
        Ok(())
    }

    /// Reloads at each `SIGHUP`, and when the files have changed. Never ends.
    pub(crate) async fn keep_fresh(self) {
        let mut asked = hangups();
        loop {
            let asked = tokio::select! {
                () = asked.recv() => true,
                () = tokio::time::sleep(LOOK) => false,
            };
            let tls = self.clone();
            // Files are read where blocking is allowed.
            let look = move || {
                let changed = marks(&tls.0.certificates, &tls.0.key) != tls.now().read;
                (asked || changed).then(|| tls.reload())
            };
            match tokio::task::spawn_blocking(look).await {
                Ok(Some(Ok(()))) => tracing::info!(target: "dunlin::tls", "certificates reloaded"),
                Ok(Some(Err(error))) => {
                    tracing::warn!(target: "dunlin::tls", "the certificates stay as they are: {error}");
                }
                Ok(None) | Err(_) => {}
            }
        }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.0.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Agrees on keys with a client that has so much time for it.
    ///
    /// # Errors
    /// Clients that speak something else, or nothing.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        timeout: Duration,
    ) -> io::Result<TlsStream<TcpStream>> {
        let acceptor = self.now().acceptor.clone();
        let handshake = tokio::time::timeout(timeout, acceptor.accept(stream));
        handshake.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

fn marks(certificates: &Path, key: &Path) -> Marks {
    [certificates, key].map(|path| {
        let meta = fs::metadata(path).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    })
}

fn acceptor(certificates: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let chain = CertificateDer::pem_file_iter(certificates)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| TlsError::Certificates(error.to_string()))?;
    if chain.is_empty() {
        return Err(TlsError::Certificates("it holds none".into()));
    }
    let key = PrivateKeyDer::from_pem_file(key);
    let key = key.map_err(|error| TlsError::Key(error.to_string()))?;
    // Others may have chosen another default for the process.
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| TlsError::Pair(error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// `SIGHUP`, where there is such a thing.
struct Hangups {
    #[cfg(unix)]
    signal: Option<tokio::signal::unix::Signal>,
}

fn hangups() -> Hangups {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        Hangups { signal: signal(SignalKind::hangup()).ok() }
    }
    #[cfg(not(unix))]
    Hangups {}
}

impl Hangups {
    async fn recv(&mut self) {
        #[cfg(unix)]
        if let Some(signal) = &mut self.signal
            && signal.recv().await.is_some()
        {
            return;
        }
        std::future::pending().await
    }
}
