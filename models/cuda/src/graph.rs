//! Records the launches of a computation as a CUDA graph, which repeats all of them with one call of the
//! driver.

use std::cell::OnceCell;

use candle_core::cuda::WrapErr;
use candle_core::cuda::cudarc::driver::sys::{
    self, CUgraphInstantiate_flags, CUgraphNodeType, CUstreamCaptureMode,
};
use candle_core::cuda::cudarc::driver::{CudaGraph, DriverError, result};
use candle_core::{CudaDevice, Result, Tensor};

use crate::launch::{address, gpu};
use crate::product::{with_workspace, workspace};
use crate::reuse::{Results, with_results};

/// The launches of a computation, with the memory that they read and write.
pub struct Graph {
    graph: CudaGraph,
    device: CudaDevice,
    /// Tensors that the launches read. A replay overwrites them with its own.
    inputs: Vec<Tensor>,
    output: Tensor,
    _results: Results,
    _workspace: Tensor,
}

// SAFETY: its handles are not bound to a thread, and calls for them need `&self` of an object that is not
// `Sync`.
unsafe impl Send for Graph {}

/// Records graphs, which share cuBLAS's memory.
#[derive(Default)]
pub struct Recorder {
    /// cuBLAS would otherwise allocate memory for each recorded matmul.
    workspace: OnceCell<Tensor>,
}

impl Recorder {
    /// Computes `compute(x)`, and records it. Returns its result, and the graph or the reason why there is
    /// none.
    ///
    /// No other thread may use the stream of the device meanwhile: its work would become part of the graph.
    ///
    /// `compute` must always launch the same kernels and matmuls. They may read `x`, `tables`, and tensors
    /// that live as long as the graph, and may overwrite `x`, but not `tables`.
    ///
    /// # Errors
    /// If the computation fails.
    pub fn record(
        &self,
        x: Tensor,
        tables: &[Tensor],
        compute: impl Fn(Tensor) -> Result<Tensor>,
    ) -> Result<(Tensor, Result<Graph>)> {
        let input = x.copy()?;
        let (computed, results) = with_results(Results::default(), || compute(x));
        // The graph gets the memory of the computation.
        let result = computed?.copy()?;
        Ok((result, self.captured(input, tables, results.again(), compute)))
    }

    fn captured(
        &self,
        input: Tensor,
        tables: &[Tensor],
        results: Results,
        compute: impl Fn(Tensor) -> Result<Tensor>,
    ) -> Result<Graph> {
        let device = gpu(&input)?.clone();
        let workspace = self.workspace(&device)?;
        let stream = device.cuda_stream();
        // In this mode, other threads may make calls that a capture forbids. It does not keep their work on
        // this stream out of the graph: only one thread may use the stream.
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).w()?;
        let captured =
            with_workspace(&device, &workspace, || with_results(results, || compute(input.clone())));
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        let recorded = captured.and_then(|(output, results)| {
            let output = output?;
            let Some(graph) = graph.w()? else { candle_core::bail!("the driver recorded nothing") };
            check_nodes(&graph)?;
            let inputs = [std::slice::from_ref(&input), tables].concat();
            let device = device.clone();
            Ok(Graph { graph, device, inputs, output, _results: results, _workspace: workspace })
        });
        if recorded.is_err() {
            // Memory that was allocated during the capture cannot be freed. cudarc would report this in a
            // later call, and another computation would fail.
            let _ = stream.context().check_err();
        }
        recorded
    }

    fn workspace(&self, device: &CudaDevice) -> Result<Tensor> {
        if let Some(workspace) = self.workspace.get() {
            return Ok(workspace.clone());
        }
        let workspace = workspace(device)?;
        Ok(self.workspace.get_or_init(|| workspace).clone())
    }
}

impl Graph {
    /// Computes the same for another `x` and other tables, of the same shapes. The next replay overwrites the
    /// result.
    pub fn replay(&self, x: &Tensor, tables: &[Tensor]) -> Result<Tensor> {
        let stream = self.device.cuda_stream();
        let sources = std::iter::once(x).chain(tables);
        if self.inputs.len() != 1 + tables.len() {
            candle_core::bail!("{} tables instead of {}", tables.len(), self.inputs.len() - 1)
        }
        for (to, from) in self.inputs.iter().zip(sources) {
            let (dtype, count) = (to.dtype(), to.elem_count());
            let [from, to] = [from, to].map(|tensor| address(&self.device, tensor, dtype, count));
            // SAFETY: both are live tensors with this number of elements, on the device of this stream.
            unsafe {
                result::memcpy_dtod_async(to?, from?, count * dtype.size_in_bytes(), stream.cu_stream())
            }
            .w()?;
        }
        self.graph.launch().w()?;
        Ok(self.output.clone())
    }
}

/// Fails if a graph has nodes other than kernels and fills. A copy from the host would read memory that is
/// not there any more, and memory that is allocated would be allocated again in each replay.
fn check_nodes(graph: &CudaGraph) -> Result<()> {
    let kinds = node_kinds(graph.cu_graph()).w()?;
    let repeatable = [CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL, CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET];
    match kinds.iter().find(|kind| !repeatable.contains(kind)) {
        Some(kind) => candle_core::bail!("the computation contains a node of type {kind:?}"),
        None => Ok(()),
    }
}

fn node_kinds(graph: sys::CUgraph) -> std::result::Result<Vec<CUgraphNodeType>, DriverError> {
    let mut count = 0;
    // SAFETY: the graph is live. Without a list, the driver returns the number of nodes.
    unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &raw mut count) }.result()?;
    let mut nodes = vec![std::ptr::null_mut(); count];
    // SAFETY: the list has space for `count` nodes.
    unsafe { sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) }.result()?;
    let mut kinds = Vec::with_capacity(count);
    for node in nodes {
        let mut kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL;
        // SAFETY: the driver just returned this node.
        unsafe { sys::cuGraphNodeGetType(node, &raw mut kind) }.result()?;
        kinds.push(kind);
    }
    Ok(kinds)
}
