//! CUDA graphs: work that is recorded instead of done, and that a program enqueues again with one call.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::ThreadId;

use crate::fault::{Code, Fault};

/// Kinds of nodes, with their `CUgraphNodeType`. Allocations and releases have no work: memory that a capture allocates stays
/// valid.
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

/// The recording of one thread.
struct Capture<W> {
    stream: usize,
    nodes: Vec<Node<W>>,
    /// A call that cannot be recorded. It makes the recording invalid.
    invalid: Option<Fault>,
}

/// Recordings, graphs and executable graphs of work of type `W`.
pub(crate) struct Graphs<W> {
    captures: HashMap<ThreadId, Capture<W>>,
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
        if self.is_capturing() {
            return Err(Fault::new(Code::CaptureUnsupported, "this thread already captures a stream"));
        }
        self.captures.insert(this_thread(), Capture { stream, nodes: Vec::new(), invalid: None });
        Ok(())
    }

    /// Ends the recording of this thread, as the graph `handle`.
    pub(crate) fn end(&mut self, stream: usize, handle: usize) -> Result<(), Fault> {
        let capture = self.captures.remove(&this_thread()).filter(|capture| capture.stream == stream);
        let capture = capture
            .ok_or_else(|| Fault::new(Code::InvalidValue, "this thread does not capture this stream"))?;
        if let Some(fault) = capture.invalid {
            return Err(Fault::new(Code::CaptureInvalidated, fault.message));
        }
        self.graphs.insert(handle, capture.nodes.into());
        Ok(())
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.captures.contains_key(&this_thread())
    }

    /// Records work if this thread captures; otherwise returns it.
    pub(crate) fn record(&mut self, node: Node<W>) -> Option<Node<W>> {
        match self.captures.get_mut(&this_thread()) {
            Some(capture) => {
                capture.nodes.push(node);
                None
            }
            None => Some(node),
        }
    }

    /// Fails if this thread captures, because the call cannot be recorded.
    pub(crate) fn refuse(&mut self, what: &str) -> Result<(), Fault> {
        let Some(capture) = self.captures.get_mut(&this_thread()) else { return Ok(()) };
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
