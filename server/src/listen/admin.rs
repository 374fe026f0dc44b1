//! The operators' listener. It has a separate thread and runtime, so that it answers even while all threads
//! of the main runtime work.

use std::{io, thread};

use axum::Router;
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::sync::{oneshot, watch};

use super::{ConnectionSettings, Listener};

pub(crate) struct AdminListener {
    pub(super) tcp: std::net::TcpListener,
    pub(super) settings: ConnectionSettings,
}

impl AdminListener {
    /// Serves connections until `closing` is true and the last one is closed, or until the future is dropped.
    pub(crate) async fn answer(self, router: Router, closing: watch::Receiver<bool>) {
        let (_stop, stopped) = oneshot::channel::<()>();
        let (ended, end) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name("admin".to_owned()).spawn(move || {
            let result = self.serve(router, closing, stopped);
            drop(ended);
            if let Err(error) = result {
                tracing::error!(%error, "the operators' port cannot be served");
            }
        });
        if let Err(error) = thread {
            tracing::error!(%error, "the operating system refused the thread of the operators' port");
        }
        // An error: the thread drops its end.
        let _ = end.await;
    }

    fn serve(
        self,
        router: Router,
        closing: watch::Receiver<bool>,
        stopped: oneshot::Receiver<()>,
    ) -> io::Result<()> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = Listener::new(TcpListener::from_std(self.tcp)?, self.settings);
            tokio::select! {
                () = listener.answer(router, closing) => {}
                _ = stopped => {}
            }
            Ok(())
        })
    }
}
