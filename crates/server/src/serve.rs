//! The loop that takes connections, and the end of it.

use std::{future::Future, io, sync::Arc, time::Duration};

use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
};

use crate::{
    app::{App, router},
    config::Config,
    connection::Timed,
};

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All requests were answered.
    Drained,
    /// Some took longer than the server waits, and were cut off.
    CutOff,
}

/// Serves until `stop` is ready, then takes no new requests, lets those under way end, and returns.
/// Requests that are still under way after the drain timeout are cut off, which cancels them.
///
/// # Errors
/// Where the listener fails for good.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    stop: impl Future<Output = ()>,
) -> io::Result<Ended> {
    let service = TowerToHyperService::new(router(app.clone()));
    let places = Arc::new(Semaphore::new(app.config.max_connections));
    let (draining, drain) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(app.config.header_timeout)
        // The least that hyper takes is 8 KiB.
        .max_buf_size(app.config.max_header_bytes.max(8 << 10))
        .keep_alive(true);
    // Ends with this function.
    let mut fresh = JoinSet::new();
    if let Some(tls) = app.config.tls.clone() {
        fresh.spawn(tls.keep_fresh());
    }
    tokio::pin!(stop);
    loop {
        // Finished ones are let go of as others come.
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = accept(&listener, &places) => accepted,
        };
        match accepted {
            Ok((stream, place)) => {
                let (http, service, drain) = (http.clone(), service.clone(), drain.clone());
                let Config { write_timeout, header_timeout, .. } = app.config;
                match app.config.tls.clone() {
                    None => {
                        let stream = Timed::new(stream, write_timeout);
                        connections.spawn(serve_connection(http, stream, service, drain, place));
                    }
                    Some(tls) => {
                        connections.spawn(async move {
                            // Clients that cannot agree are no news here.
                            if let Ok(stream) = tls.accept(stream, header_timeout).await {
                                let stream = Timed::new(stream, write_timeout);
                                serve_connection(http, stream, service, drain, place).await;
                            }
                        });
                    }
                }
            }
            Err(error) if is_passing(&error) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(error) => return Err(error),
        }
    }
    drop(listener);
    app.drain();
    // Nobody listens when there are no connections.
    let _ = draining.send(true);
    let all = async { while connections.join_next().await.is_some() {} };
    match tokio::time::timeout(app.config.drain_timeout, all).await {
        Ok(()) => Ok(Ended::Drained),
        Err(_) => Ok(Ended::CutOff),
    }
}

/// Waits for a place and then for a connection, so that those beyond the limit wait in the system's
/// queue.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Tokens are small and wanted at once.
    stream.set_nodelay(true)?;
    Ok((stream, place))
}

/// Errors that one connection causes, or that end when others do.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    let of_connection = matches!(
        error.kind(),
        Kind::ConnectionAborted
            | Kind::ConnectionReset
            | Kind::ConnectionRefused
            | Kind::Interrupted
            | Kind::InvalidInput
            | Kind::NotConnected
    );
    // Too many files, here or in the whole system.
    of_connection || matches!(error.raw_os_error(), Some(23 | 24))
}

async fn serve_connection(
    http: http1::Builder,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    service: TowerToHyperService<axum::Router>,
    mut drain: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
) {
    let connection = http.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    // Clients that break off are no news here: dropping the request cancels its work.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = drain.wait_for(|draining| *draining) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

/// Ready when the process is asked to end: by SIGTERM, or by Ctrl-C.
pub async fn asked_to_stop() {
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminated) = signal(SignalKind::terminate()) {
            tokio::select! {
                () = interrupted => {}
                _ = terminated.recv() => {}
            }
            return;
        }
    }
    interrupted.await;
}
