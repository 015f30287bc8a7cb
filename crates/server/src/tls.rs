//! TLS in front of a connection.

use std::{io, path::Path, sync::Arc, time::Duration};

use tokio::net::TcpStream;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
    server::TlsStream,
};

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

/// What a server shows its clients.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

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
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
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
        let handshake = tokio::time::timeout(timeout, self.0.accept(stream));
        handshake.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}
