//! Signals of the process: SIGTERM and SIGINT end the server, SIGHUP has it read some files again.
//!
//! A separate thread waits for them, so that threads that block cannot delay a second request to end.

use std::io;
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Requests to end: the first one drains the server, the second ends it immediately.
pub type EndRequests = mpsc::Receiver<()>;

/// Time for the server to end by itself after the second request, so that it can report what it cut off.
const END_TIME_MAX: Duration = Duration::from_millis(700);

/// Time for the handlers that run at the exit of the process, such as those of a GPU's driver.
const EXIT_TIME_MAX: Duration = Duration::from_millis(200);

/// Starts to listen for signals. `reload` runs at each SIGHUP.
pub fn listen(reload: impl Fn() + Clone + Send + 'static) -> io::Result<EndRequests> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let inside = runtime.enter();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(inside);
    // Two requests are enough; more are dropped.
    let (sender, requests) = mpsc::channel(2);
    let wait = async move {
        let mut count = 0;
        loop {
            tokio::select! {
                _ = terminate.recv() => count += 1,
                _ = interrupt.recv() => count += 1,
                _ = hangup.recv() => {
                    // Reading a file may block.
                    tokio::task::spawn_blocking(reload.clone());
                    continue;
                }
            }
            // Fails if the server has ended already, or has not read two requests yet.
            let _ = sender.try_send(());
            if count == 2 {
                tokio::task::spawn_blocking(end_soon);
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(wait))?;
    Ok(requests)
}

/// Ends the process, even if it hangs.
fn end_soon() {
    thread::sleep(END_TIME_MAX);
    // Fails if there is no thread left, and then there is no time for handlers.
    let _ = thread::Builder::new().spawn(|| std::process::exit(1));
    thread::sleep(EXIT_TIME_MAX);
    // A process may always signal itself.
    let _ = kill_process(getpid(), Signal::KILL);
}
