//! Signals that end a service or an agent.
//!
//! Source: signal(7).

/// Waits for SIGTERM or SIGINT.
pub(crate) async fn ended() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    Ok(())
}
