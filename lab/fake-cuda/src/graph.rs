//! CUDA graphs: work that is recorded instead of done, and that a program enqueues again with one call.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::ThreadId;

use crate::fault::{Code, Fault};

/// Kinds of nodes, with their `CUgraphNodeType`. Allocations and releases have no work: memory that a capture
/// allocates stays valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    Kernel = 0,
    Copy = 1,
    Fill = 2,
    Event = 7,
    Allocation = 10,
    Release = 11,
}

#[derive(Clone)]
pub(crate) struct Node<W> {
    pub(crate) kind: NodeKind,
    pub(crate) work: W,
}

/// The recording of one stream.
struct Capture<W> {
    /// The thread that began it, and has to end it.
    thread: ThreadId,
    nodes: Vec<Node<W>>,
    /// A call that cannot be recorded. It makes the recording invalid.
    invalid: Option<Fault>,
}

/// Recordings, graphs and executable graphs of work of type `W`.
///
/// A stream that is captured records the calls of all threads on it. The mode of a capture decides only which
/// calls without a stream its threads may make.
pub(crate) struct Graphs<W> {
    captures: HashMap<usize, Capture<W>>,
    graphs: HashMap<usize, Arc<[Node<W>]>>,
    executables: HashMap<usize, Arc<[Node<W>]>>,
}

impl<W> Default for Graphs<W> {
    fn default() -> Self {
        Self { captures: HashMap::new(), graphs: HashMap::new(), executables: HashMap::new() }
    }
}

fn this_thread() -> ThreadId {
    std::thread::current().id()
}

/// Streams 0 to 2 are the default streams.
fn is_default(stream: usize) -> bool {
    stream <= 2
}

fn no_graph() -> Fault {
    Fault::new(Code::InvalidHandle, "this graph does not exist")
}

impl<W> Graphs<W> {
    pub(crate) fn begin(&mut self, stream: usize) -> Result<(), Fault> {
        if is_default(stream) {
            return Err(Fault::new(Code::CaptureUnsupported, "the default stream cannot be captured"));
        }
        if self.captures.contains_key(&stream) {
            return Err(Fault::new(Code::CaptureUnsupported, "this stream is already captured"));
        }
        let capture = Capture { thread: this_thread(), nodes: Vec::new(), invalid: None };
        self.captures.insert(stream, capture);
        Ok(())
    }

    /// Ends the recording of a stream, as the graph `handle`.
    pub(crate) fn end(&mut self, stream: usize, handle: usize) -> Result<(), Fault> {
        let capture = self.captures.remove(&stream);
        let capture = capture.ok_or_else(|| Fault::new(Code::InvalidValue, "this stream is not captured"))?;
        if capture.thread != this_thread() {
            self.captures.insert(stream, capture);
            return Err(Fault::new(Code::WrongThread, "another thread began to capture this stream"));
        }
        if let Some(fault) = capture.invalid {
            return Err(Fault::new(Code::CaptureInvalidated, fault.message));
        }
        self.graphs.insert(handle, capture.nodes.into());
        Ok(())
    }

    /// Returns the recording that a call on a stream belongs to. A call without a stream belongs to one of
    /// this thread.
    fn capture(&mut self, stream: Option<usize>) -> Option<&mut Capture<W>> {
        match stream {
            Some(stream) => self.captures.get_mut(&stream),
            None => self.captures.values_mut().find(|capture| capture.thread == this_thread()),
        }
    }

    pub(crate) fn is_capturing(&mut self, stream: Option<usize>) -> bool {
        self.capture(stream).is_some()
    }

    /// Records work if the stream is captured; otherwise returns it.
    pub(crate) fn record(&mut self, stream: Option<usize>, node: Node<W>) -> Option<Node<W>> {
        match self.capture(stream) {
            Some(capture) => {
                capture.nodes.push(node);
                None
            }
            None => Some(node),
        }
    }

    /// Fails if the stream is captured, because the call cannot be recorded.
    pub(crate) fn refuse(&mut self, stream: Option<usize>, what: &str) -> Result<(), Fault> {
        let Some(capture) = self.capture(stream) else { return Ok(()) };
        let fault = Fault::new(Code::CaptureUnsupported, format!("{what} cannot be captured"));
        capture.invalid = Some(fault.clone());
        Err(fault)
    }

    pub(crate) fn nodes(&self, graph: usize) -> Result<&[Node<W>], Fault> {
        self.graphs.get(&graph).map(AsRef::as_ref).ok_or_else(no_graph)
    }

    pub(crate) fn instantiate(&mut self, graph: usize, handle: usize) -> Result<(), Fault> {
        let nodes = Arc::clone(self.graphs.get(&graph).ok_or_else(no_graph)?);
        self.executables.insert(handle, nodes);
        Ok(())
    }

    pub(crate) fn executable(&self, handle: usize) -> Result<Arc<[Node<W>]>, Fault> {
        self.executables.get(&handle).map(Arc::clone).ok_or_else(no_graph)
    }

    pub(crate) fn destroy(&mut self, graph: usize) -> Result<(), Fault> {
        self.graphs.remove(&graph).map(drop).ok_or_else(no_graph)
    }

    pub(crate) fn destroy_executable(&mut self, handle: usize) -> Result<(), Fault> {
        self.executables.remove(&handle).map(drop).ok_or_else(no_graph)
    }
}
