//! Accepts, encrypts and serves connections. Closes them on timeouts, when there are too many, and at shutdown.
//!
//! Source: RFC 9112 (HTTP/1.1), RFC 8446 (TLS 1.3).

use crate::Log;
use crate::agent::SHUTDOWN_TIMEOUT;
use crate::api::Peer;
use crate::certificate::{self, CertificateInfo};
use crate::connection_limit::{Answer, ConnectionLimit, ConnectionPermit};
use crate::problem::HttpProblem;
use crate::wire::ProblemKind;
use axum::Router;
use axum::body::Body;
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::http::{HeaderName, HeaderValue, Request, Response, Version};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};
use tokio_rustls::TlsAcceptor;

/// Maximum number of connections. Idle ones are closed to admit new ones.
const MAX_CONNECTIONS: usize = 1024;
/// Upper bound of other open files: the database, pipes of child processes.
const OTHER_FILES: u64 = 1024;
/// Timeout of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a request's header, also for the next request on the same connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for the peer to accept data.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of a header in bytes.
const MAX_HEADER_BYTES: usize = 32 << 10;

/// A stream that fails when the peer does not accept data for too long.
struct WriteTimeout<S> {
    stream: S,
    permit: Arc<ConnectionPermit>,
    since: Option<Pin<Box<Sleep>>>,
}

impl<S: Unpin> WriteTimeout<S> {
    fn watch<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.permit.set_sending(written.is_pending());
        if written.is_ready() {
            self.since = None;
            return written;
        }
        let since = self
            .since
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + WRITE_TIMEOUT)));
        ready!(since.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.watch(cx, shut)
    }
}

/// Reads a certificate chain and its key, and checks the certificate.
pub(crate) fn tls(certificate: &Path, key: &Path) -> Result<(TlsAcceptor, CertificateInfo), String> {
    let file_error = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(certificate).map_err(|e| file_error(certificate, &e))?.collect();
    let chain = chain.map_err(|e| file_error(certificate, &e))?;
    let details = certificate::inspect(&chain).map_err(|e| file_error(certificate, &e))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|e| file_error(key, &e))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|e| file_error(certificate, &e))?;
    Ok((TlsAcceptor::from(Arc::new(config)), details))
}

/// Serves until `stopping`, then finishes the requests in progress.
pub(crate) async fn listen(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    mut stopping: watch::Receiver<bool>,
    log: &Log,
) {
    let limit = ConnectionLimit::new(MAX_CONNECTIONS);
    allow_files();
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            _ = stopping.wait_for(|s| *s) => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(connection) => connection,
            Err(error) => {
                log(&format!("cannot accept a connection: {error}"));
                // The usual cause is too many open files. Closing idle connections releases some.
                limit.evict_idle();
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let permit = tokio::select! {
            _ = stopping.wait_for(|s| *s) => break,
            permit = limit.take(peer.ip()) => Arc::new(permit),
        };
        // Do not delay small answers (Nagle's algorithm).
        let _ = stream.set_nodelay(true);
        let (router, tls, watcher) = (router.clone(), tls.clone(), graceful.watcher());
        tokio::spawn(async move {
            let served = async {
                match tls {
                    None => serve(stream, peer, router, watcher, &permit).await,
                    Some(tls) => {
                        if let Ok(Ok(stream)) =
                            tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await
                        {
                            serve(stream, peer, router, watcher, &permit).await;
                        }
                    }
                }
            };
            tokio::select! {
                () = served => {}
                () = permit.closed() => {}
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, graceful.shutdown()).await.is_err() {
        log("some requests were not answered in time and were cut off");
    }
}

/// Raises the limit on open files to the number that the connections need, as far as permitted.
fn allow_files() {
    let wanted = MAX_CONNECTIONS as u64 + OTHER_FILES;
    let now = getrlimit(Resource::Nofile);
    if now.current.is_some_and(|current| current < wanted) {
        let current = Some(now.maximum.map_or(wanted, |max| max.min(wanted)));
        // If this fails, connections are refused earlier, and that is logged.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, ..now });
    }
}

/// Size of a request's header on the wire, without optional whitespace.
fn header_bytes(request: &Request<Incoming>) -> usize {
    let line = request.method().as_str().len() + request.uri().to_string().len() + " HTTP/1.1\r\n ".len();
    let field =
        |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + ": \r\n".len();
    line + request.headers().iter().map(field).sum::<usize>() + "\r\n".len()
}

/// Whether the request has one `Host` with a valid value (RFC 9112, 3.2).
fn names_one_host<B>(request: &Request<B>) -> bool {
    let mut values = request.headers().get_all(HOST).iter();
    let (Some(host), None) = (values.next(), values.next()) else { return false };
    let authority = Authority::try_from(host.as_bytes());
    authority.is_ok_and(|authority| {
        // Fails for a user before the host.
        let after_host = authority.as_str().strip_prefix(authority.host());
        let is_port = |text: &str| {
            let digits = text.strip_prefix(':').unwrap_or(text);
            digits.is_empty() || text.starts_with(':') && digits.parse::<u16>().is_ok()
        };
        !authority.host().is_empty() && after_host.is_some_and(is_port)
    })
}

/// Answers a request. The connection becomes idle when the answer is sent. An error closes the connection.
async fn answer(
    mut request: Request<Incoming>,
    peer: SocketAddr,
    router: TowerToHyperService<Router>,
    permit: Arc<ConnectionPermit>,
) -> Result<Response<Answer<Body>>, Infallible> {
    if header_bytes(&request) > MAX_HEADER_BYTES {
        // hyper limits only its read buffer, and one read may return a longer header.
        let detail = format!("the header is longer than {MAX_HEADER_BYTES} bytes");
        let refused = HttpProblem::new(ProblemKind::HeaderTooLong, detail).into_response();
        return Ok(refused.map(|body| Answer::new(body, permit)));
    }
    if request.version() == Version::HTTP_11 && !names_one_host(&request) {
        let detail = "send exactly one header `Host` with a host name or address".to_string();
        let refused = HttpProblem::new(ProblemKind::WrongHeader, detail).into_response();
        return Ok(refused.map(|body| Answer::new(body, permit)));
    }
    request.extensions_mut().insert(Peer(peer));
    let answered = hyper::service::Service::call(&router, request).await;
    answered.map(|response| response.map(|body| Answer::new(body, permit)))
}

async fn serve<S>(
    stream: S,
    peer: SocketAddr,
    router: Router,
    watcher: Watcher,
    permit: &Arc<ConnectionPermit>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = WriteTimeout { stream, permit: permit.clone(), since: None };
    let router = TowerToHyperService::new(router);
    let permit = permit.clone();
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (router, permit, kept) = (router.clone(), permit.clone(), permit.begin_request());
        async move {
            match kept {
                true => answer(request, peer, router, permit).await.map_err(|never| match never {}),
                false => Err(io::Error::from(io::ErrorKind::ConnectionAborted)),
            }
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // A failed connection affects only its peer: a request either runs to completion or not at all.
    let _ = watcher.watch(connection).await;
}
