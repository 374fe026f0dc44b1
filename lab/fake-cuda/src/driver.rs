//! The state of the fake device (memory, modules, streams, events and counts), and the effect of each call on
//! it.
//!
//! Work is checked and counted when it is enqueued, and done in order when the host waits for the device. So
//! a host that reads a result too early, or frees memory too early, finds no result, and a call returns
//! before its work is done.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::counts::{Counts, Total};
use crate::fatbin::Fatbin;
use crate::fault::{Code, Fault};
use crate::graph::{Graphs, Node, NodeKind};
use crate::memory::Memory;
use crate::product::Product;
use crate::ptx::{self, Execution, Kernel, Launch};
use crate::sabotage::Sabotage;

/// Limits of a launch on a device.
const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
const THREADS_MAX: u64 = 1024;
const SHARED_MAX: usize = 48 << 10;
/// Maximum shared memory that `cuFuncSetAttribute` can allow a kernel, in bytes.
pub(crate) const SHARED_OPTIN_MAX: usize = 227 << 10;

/// Default compute capability of the device, times ten.
const CAPABILITY: usize = 90;
/// Names of counts: modules that a driver would compile, look-ups of functions, and matmuls for which cuBLAS
/// has no fast kernel.
const COMPILED: &str = "compiled modules";
const LOOK_UPS: &str = "look-ups of functions";
const UNALIGNED: &str = "unaligned matmuls";
/// Name of the count of launched graphs. Their kernels and matmuls do not count.
const GRAPHS: &str = "graphs";

/// Work that the host has not waited for yet, or that is part of a graph.
type Work = Arc<dyn Fn(&mut Driver) -> Result<(), Fault> + Send + Sync>;

/// The only device of the process.
pub struct Driver {
    pub memory: Memory,
    /// Host memory that the device reads directly.
    pub pinned: Memory,
    pub counts: Counts,
    /// Whether kernels and matmuls are computed, or only checked and counted.
    pub numerics: bool,
    /// Bytes that the memory pool has allocated, and how many of them it keeps at a synchronisation.
    pool_bytes: usize,
    pool_threshold: usize,
    capability: usize,
    sabotage: Option<Sabotage>,
    queue: Vec<Work>,
    /// The fault of work that broke the context. All later calls return it, too.
    dead: Option<Fault>,
    modules: HashMap<usize, Loaded>,
    functions: HashMap<usize, Function>,
    streams: HashSet<usize>,
    graphs: Graphs<Work>,
    /// The stream of the present call; `None` for calls without one.
    stream: Option<usize>,
    /// Handles of cuBLAS, which threads may share.
    matmuls: HashMap<usize, Matmuls>,
    /// Events, and when the device last reached each.
    events: HashMap<usize, Option<Instant>>,
    last_handle: usize,
}

/// The settings of a handle of cuBLAS.
#[derive(Clone, Copy, Default)]
struct Matmuls {
    stream: usize,
    /// The memory for matmuls: address and bytes.
    workspace: Option<(usize, usize)>,
}

struct Loaded {
    module: ptx::Module,
    globals: HashMap<String, u64>,
    functions: HashMap<String, usize>,
}

struct Function {
    kernel: Arc<Kernel>,
    dynamic_shared_max: usize,
}

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| Mutex::new(Driver::new()));

/// Returns the device, for one caller at a time.
pub fn driver() -> MutexGuard<'static, Driver> {
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Driver {
    fn default() -> Self {
        Self::new()
    }
}

impl Driver {
    pub fn new() -> Self {
        let numerics = std::env::var("NTL_FAKE_CUDA_NUMERICS").map_or(true, |value| value != "off");
        let capability = std::env::var("NTL_FAKE_CUDA_CAPABILITY").ok();
        Self {
            memory: Memory::from_environment(),
            pinned: Memory::default(),
            counts: Counts::from_environment(),
            numerics,
            pool_bytes: 0,
            pool_threshold: 0,
            capability: capability.and_then(|text| text.parse().ok()).unwrap_or(CAPABILITY),
            sabotage: Sabotage::from_environment(),
            queue: Vec::new(),
            dead: None,
            modules: HashMap::new(),
            functions: HashMap::new(),
            streams: HashSet::new(),
            graphs: Graphs::default(),
            stream: None,
            matmuls: HashMap::new(),
            events: HashMap::new(),
            last_handle: 0x1000,
        }
    }

    fn handle(&mut self) -> usize {
        self.last_handle += 16;
        self.last_handle
    }

    /// Allocates memory. If kernels are computed, all its bits are ones (NaN), so that unwritten memory is
    /// visible in results.
    pub fn allocate(&mut self, bytes: usize) -> Result<usize, Fault> {
        let address = self.memory.allocate(bytes)?;
        if self.numerics {
            // SAFETY: the allocation was just made.
            unsafe { std::ptr::write_bytes(address as *mut u8, 0xff, bytes) };
        }
        if self.graphs.is_capturing(self.stream) {
            self.enqueue(NodeKind::Allocation, |_| Ok(()));
        }
        self.pool_bytes = self.pool_bytes.max(self.memory.used());
        self.counts.add(Total::Allocations, 1);
        self.counts.add(Total::AllocatedBytes, bytes);
        self.counts.live(self.memory.used());
        Ok(address)
    }

    /// Makes calls on a stream.
    pub fn on<T>(&mut self, stream: usize, call: impl FnOnce(&mut Self) -> T) -> T {
        self.stream = Some(stream);
        let result = call(self);
        self.stream = None;
        result
    }

    /// Enqueues work, or records it if its stream is captured.
    fn enqueue(
        &mut self,
        kind: NodeKind,
        work: impl Fn(&mut Self) -> Result<(), Fault> + Send + Sync + 'static,
    ) {
        if let Some(node) = self.graphs.record(self.stream, Node { kind, work: Arc::new(work) }) {
            self.queue.push(node.work);
        }
    }

    /// Counts a launch, unless it is only recorded.
    fn count_launch(&mut self, total: Total, name: &str) {
        if !self.graphs.is_capturing(self.stream) {
            self.counts.add(total, 1);
            self.counts.name(name);
        }
    }

    /// Does all enqueued work. After a fault the rest is dropped, and an invalid access breaks the context.
    pub fn finish(&mut self) -> Result<(), Fault> {
        for work in std::mem::take(&mut self.queue) {
            work(self).inspect_err(|fault| {
                if fault.code.is_sticky() {
                    self.dead = Some(fault.clone());
                }
            })?;
        }
        Ok(())
    }

    /// Waits for the device. The memory pool then returns memory beyond the amount that it keeps.
    pub fn synchronise(&mut self) -> Result<(), Fault> {
        self.graphs.refuse(self.stream, "waiting for the device")?;
        self.counts.add(Total::Synchronisations, 1);
        self.finish()?;
        let kept = self.memory.used().max(self.pool_threshold).min(self.pool_bytes);
        self.counts.add(Total::ReturnedBytes, self.pool_bytes - kept);
        self.pool_bytes = kept;
        Ok(())
    }

    /// Sets the amount of free memory that the pool keeps.
    pub fn keep_pool(&mut self, bytes: usize) {
        self.pool_threshold = bytes;
    }

    /// Frees memory after the work that was enqueued before. Later allocations can use its bytes immediately.
    pub fn free(&mut self, address: usize) -> Result<(), Fault> {
        if self.graphs.is_capturing(self.stream) {
            self.enqueue(NodeKind::Release, |_| Ok(()));
            return Ok(());
        }
        self.memory.release(address)?;
        self.enqueue(NodeKind::Release, move |driver| driver.memory.retire(address));
        self.counts.add(Total::Frees, 1);
        self.counts.live(self.memory.used());
        Ok(())
    }

    /// Copies from the host. A driver keeps a copy of the bytes, unless they are in pinned memory.
    ///
    /// # Safety
    /// `from` must be valid for reads of `bytes` bytes.
    pub unsafe fn upload(&mut self, to: usize, from: *const u8, bytes: usize) -> Result<(), Fault> {
        self.counts.add(Total::Uploads, 1);
        self.counts.add(Total::UploadedBytes, bytes);
        if bytes == 0 {
            return Ok(());
        }
        let is_pinned = self.pinned.find(from as usize, bytes).is_some();
        // SAFETY: the caller guarantees it.
        let kept = (!is_pinned).then(|| unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec());
        let from = from as usize;
        self.enqueue(NodeKind::Copy, move |driver| {
            driver.memory.check("an upload", to, bytes)?.set_written(to, bytes, true);
            let from = kept.as_ref().map_or(from as *const u8, |kept| kept.as_ptr());
            // SAFETY: the table contains the target. The source is ours, or pinned memory, which is freed
            // only after all work is done.
            unsafe { std::ptr::copy_nonoverlapping(from, to as *mut u8, bytes) };
            Ok(())
        });
        Ok(())
    }

    /// Copies to the host. A driver returns when the bytes have arrived, unless they go to pinned memory or
    /// the copy is only recorded.
    ///
    /// # Safety
    /// `to` must be valid for writes of `bytes` bytes.
    pub unsafe fn download(&mut self, to: *mut u8, from: usize, bytes: usize) -> Result<(), Fault> {
        if self.graphs.is_capturing(self.stream) {
            self.enqueue(NodeKind::Copy, |_| {
                Err(Fault::new(Code::InvalidValue, "a replay downloads to memory that may be gone"))
            });
            return Ok(());
        }
        self.counts.add(Total::Downloads, 1);
        self.counts.add(Total::DownloadedBytes, bytes);
        let is_pinned = self.pinned.find(to as usize, bytes).is_some();
        if bytes > 0 {
            let to = to as usize;
            self.enqueue(NodeKind::Copy, move |driver| {
                let source = driver.memory.check("a download", from, bytes)?;
                if driver.numerics {
                    source.check_written("a download", from, bytes)?;
                }
                // SAFETY: the table contains the source. The target is the caller's, who waits, or pinned
                // memory.
                unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
                Ok(())
            });
        }
        if is_pinned { Ok(()) } else { self.synchronise() }
    }

    /// Frees pinned memory after all work that may use it.
    pub fn free_pinned(&mut self, address: usize) -> Result<(), Fault> {
        self.finish()?;
        self.pinned.free(address)
    }

    pub fn copy(&mut self, to: usize, from: usize, bytes: usize) {
        self.counts.add(Total::Copies, 1);
        if bytes == 0 {
            return;
        }
        self.enqueue(NodeKind::Copy, move |driver| {
            let source = driver.memory.check("the source of a copy", from, bytes)?;
            let target = driver.memory.check("the target of a copy", to, bytes)?;
            if driver.numerics {
                target.copy_written(to, &source, from, bytes);
            }
            // SAFETY: the table contains both.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
            Ok(())
        });
    }

    pub fn fill(&mut self, to: usize, value: u8, bytes: usize) {
        self.counts.add(Total::Fills, 1);
        if bytes == 0 {
            return;
        }
        self.enqueue(NodeKind::Fill, move |driver| {
            driver.memory.check("a fill", to, bytes)?.set_written(to, bytes, true);
            // SAFETY: the table contains the range.
            unsafe { std::ptr::write_bytes(to as *mut u8, value, bytes) };
            Ok(())
        });
    }

    /// Returns the compute capability, times ten.
    pub(crate) fn capability(&self) -> usize {
        self.capability
    }

    /// Loads an image with code for several generations.
    pub fn load_image(&mut self, image: &[u8]) -> Result<usize, Fault> {
        let Fatbin { ptx, generations } = Fatbin::read(image)?;
        let capability = self.capability();
        let compatible = capability / 10 * 10..=capability;
        if generations.iter().any(|code| compatible.contains(code)) {
            self.load_ptx(ptx)
        } else {
            self.load_module(ptx)
        }
    }

    /// Loads a PTX text, which a driver would compile.
    pub fn load_module(&mut self, text: &str) -> Result<usize, Fault> {
        self.counts.name(COMPILED);
        self.load_ptx(text)
    }

    /// Loads a PTX text and allocates memory for its variables.
    fn load_ptx(&mut self, text: &str) -> Result<usize, Fault> {
        let module = ptx::Module::parse(text)?;
        let mut globals = HashMap::new();
        for (name, bytes, initial) in module.globals() {
            let address = self.memory.allocate(bytes)?;
            // SAFETY: the allocation was just made, and an initial value is not longer than its variable.
            unsafe {
                std::ptr::copy_nonoverlapping(initial.as_ptr(), address as *mut u8, initial.len().min(bytes))
            };
            self.memory.check("a variable", address, bytes)?.set_written(address, bytes, true);
            globals.insert(name.to_owned(), address as u64);
        }
        let handle = self.handle();
        self.modules.insert(handle, Loaded { module, globals, functions: HashMap::new() });
        Ok(handle)
    }

    pub fn unload_module(&mut self, handle: usize) -> Result<(), Fault> {
        self.finish()?;
        let loaded = self.modules.remove(&handle).ok_or_else(|| invalid_handle("module"))?;
        for function in loaded.functions.values() {
            self.functions.remove(function);
        }
        loaded.globals.values().try_for_each(|&address| self.memory.free(address as usize))
    }

    /// Returns the kernel of this name, decoding it on first use.
    pub fn function(&mut self, module: usize, name: &str) -> Result<usize, Fault> {
        self.counts.name(LOOK_UPS);
        let next = self.handle();
        let loaded = self.modules.get_mut(&module).ok_or_else(|| invalid_handle("module"))?;
        if let Some(&function) = loaded.functions.get(name) {
            return Ok(function);
        }
        if self.sabotage.as_ref().is_some_and(|sabotage| sabotage.hides(name)) {
            return Err(Fault::new(Code::NotFound, format!("there is no kernel {name} (deliberate fault)")));
        }
        let kernel = Arc::new(Kernel::decode(&loaded.module, name, &loaded.globals)?);
        loaded.functions.insert(name.to_owned(), next);
        self.functions.insert(next, Function { kernel, dynamic_shared_max: SHARED_MAX });
        Ok(next)
    }

    pub fn kernel(&self, function: usize) -> Result<Arc<Kernel>, Fault> {
        let function = self.functions.get(&function).ok_or_else(|| invalid_handle("function"))?;
        Ok(Arc::clone(&function.kernel))
    }

    pub fn allow_shared(&mut self, function: usize, bytes: usize) -> Result<(), Fault> {
        let function = self.functions.get_mut(&function).ok_or_else(|| invalid_handle("function"))?;
        if bytes > SHARED_OPTIN_MAX {
            return Err(Fault::new(Code::InvalidValue, format!("{bytes} bytes of shared memory")));
        }
        function.dynamic_shared_max = bytes;
        Ok(())
    }

    /// Fails if earlier work has broken the context.
    pub fn check_alive(&self) -> Result<(), Fault> {
        self.dead.clone().map_or(Ok(()), Err)
    }

    pub fn launch(&mut self, function: usize, launch: Launch) -> Result<(), Fault> {
        self.check_alive()?;
        let kernel = self.kernel(function)?;
        self.count_launch(Total::Launches, kernel.name());
        self.check_sizes(function, &kernel, &launch)
            .map_err(|fault| fault.within(&format!("kernel {}", kernel.name())))?;
        self.enqueue(NodeKind::Kernel, move |driver| driver.run_kernel(&kernel, launch.clone()));
        Ok(())
    }

    fn run_kernel(&self, kernel: &Kernel, mut launch: Launch) -> Result<(), Fault> {
        let mut execution = if self.numerics { Execution::Right } else { Execution::Skipped };
        if let Some(sabotage) = &self.sabotage {
            sabotage.check().map_err(|fault| fault.within(&format!("kernel {}", kernel.name())))?;
            sabotage.parameters(kernel, &mut launch.parameters);
            if self.numerics && sabotage.falsifies(kernel.name()) {
                execution = Execution::Wrong;
            }
        }
        ptx::launch(kernel, &launch, &self.memory, execution)
    }

    fn check_sizes(&self, function: usize, kernel: &Kernel, launch: &Launch) -> Result<(), Fault> {
        for (what, sizes, most) in [("grid", launch.grid, GRID_MAX), ("block", launch.block, BLOCK_MAX)] {
            if sizes.iter().zip(most).any(|(&size, most)| size == 0 || size > most) {
                let message = format!("a {what} of {sizes:?}; the maximum is {most:?} and the minimum 1");
                return Err(Fault::new(Code::InvalidValue, message));
            }
        }
        let threads: u64 = launch.block.iter().map(|&size| u64::from(size)).product();
        let most = kernel.threads_max().unwrap_or(THREADS_MAX);
        if threads > most {
            let message = format!("a block of {threads} threads; the maximum is {most}");
            return Err(Fault::new(Code::InvalidValue, message));
        }
        let most = self.functions.get(&function).map_or(0, |function| function.dynamic_shared_max);
        let bytes = kernel.shared_bytes() + launch.dynamic_shared_bytes;
        if bytes > most.max(SHARED_MAX) {
            return Err(Fault::new(Code::InvalidValue, format!("{bytes} bytes of shared memory")));
        }
        Ok(())
    }

    /// Enqueues a matmul that has no memory from its caller.
    pub fn product(&mut self, name: &str, product: &Product) -> Result<(), Fault> {
        self.product_in(None, name, product)
    }

    /// Enqueues a matmul on the stream of a handle of cuBLAS.
    pub(crate) fn product_of(&mut self, handle: usize, name: &str, product: &Product) -> Result<(), Fault> {
        let Matmuls { stream, workspace } = *self.matmuls(handle)?;
        self.on(stream, |driver| driver.product_in(workspace, name, product))
    }

    fn product_in(
        &mut self,
        workspace: Option<(usize, usize)>,
        name: &str,
        product: &Product,
    ) -> Result<(), Fault> {
        self.check_alive()?;
        self.count_launch(Total::Products, name);
        if !product.is_aligned() {
            self.counts.name(UNALIGNED);
        }
        let product = self.sabotage.as_ref().map_or(*product, |sabotage| sabotage.product(product));
        let allocates = workspace.is_none() && self.graphs.is_capturing(self.stream);
        if allocates {
            self.enqueue(NodeKind::Allocation, |_| Ok(()));
        }
        self.enqueue(NodeKind::Kernel, move |driver| {
            if let Some((address, bytes)) = workspace {
                driver.memory.check("the workspace of a matmul", address, bytes)?;
            }
            product.run(&driver.memory, driver.numerics)
        });
        if allocates {
            self.enqueue(NodeKind::Release, |_| Ok(()));
        }
        Ok(())
    }

    pub(crate) fn new_matmuls(&mut self) -> usize {
        let handle = self.handle();
        self.matmuls.insert(handle, Matmuls::default());
        handle
    }

    pub(crate) fn drop_matmuls(&mut self, handle: usize) -> Result<(), Fault> {
        self.matmuls.remove(&handle).map(drop).ok_or_else(|| invalid_handle("handle of cuBLAS"))
    }

    fn matmuls(&mut self, handle: usize) -> Result<&mut Matmuls, Fault> {
        self.matmuls.get_mut(&handle).ok_or_else(|| invalid_handle("handle of cuBLAS"))
    }

    /// Sets the memory for matmuls. Without any, a recorded matmul allocates memory.
    pub(crate) fn set_workspace(&mut self, handle: usize, address: usize, bytes: usize) -> Result<(), Fault> {
        self.memory.check("the workspace of matmuls", address, bytes)?;
        self.matmuls(handle)?.workspace = Some((address, bytes));
        Ok(())
    }

    /// Sets the stream of matmuls, which resets their memory.
    pub(crate) fn set_matmul_stream(&mut self, handle: usize, stream: usize) -> Result<(), Fault> {
        self.check_stream(stream)?;
        *self.matmuls(handle)? = Matmuls { stream, workspace: None };
        Ok(())
    }

    pub fn new_stream(&mut self) -> usize {
        let handle = self.handle();
        self.streams.insert(handle);
        handle
    }

    pub fn drop_stream(&mut self, stream: usize) -> Result<(), Fault> {
        if self.streams.remove(&stream) { Ok(()) } else { Err(invalid_handle("stream")) }
    }

    /// Streams 0 to 2 always exist.
    pub fn check_stream(&self, stream: usize) -> Result<(), Fault> {
        if stream <= 2 || self.streams.contains(&stream) { Ok(()) } else { Err(invalid_handle("stream")) }
    }

    /// Begins to record the work of a stream instead of doing it.
    pub fn begin_capture(&mut self, stream: usize) -> Result<(), Fault> {
        self.graphs.begin(stream)
    }

    /// Returns a graph of the work since the beginning of the capture.
    pub fn end_capture(&mut self, stream: usize) -> Result<usize, Fault> {
        let graph = self.handle();
        self.graphs.end(stream, graph).map(|()| graph)
    }

    pub fn is_capturing(&mut self) -> bool {
        self.graphs.is_capturing(self.stream)
    }

    pub fn graph_nodes(&self, graph: usize) -> Result<Vec<NodeKind>, Fault> {
        Ok(self.graphs.nodes(graph)?.iter().map(|node| node.kind).collect())
    }

    /// Returns an executable graph.
    pub fn instantiate(&mut self, graph: usize) -> Result<usize, Fault> {
        let executable = self.handle();
        self.graphs.instantiate(graph, executable).map(|()| executable)
    }

    /// Enqueues all work of an executable graph.
    pub fn launch_graph(&mut self, executable: usize) -> Result<(), Fault> {
        self.graphs.refuse(self.stream, "a graph")?;
        let nodes = self.graphs.executable(executable)?;
        self.counts.name(GRAPHS);
        let left_out = usize::from(self.sabotage == Some(Sabotage::Graph));
        self.queue.extend(nodes.iter().skip(left_out).map(|node| Arc::clone(&node.work)));
        Ok(())
    }

    pub fn destroy_graph(&mut self, graph: usize) -> Result<(), Fault> {
        self.graphs.destroy(graph)
    }

    pub fn destroy_executable(&mut self, executable: usize) -> Result<(), Fault> {
        self.graphs.destroy_executable(executable)
    }

    pub fn new_event(&mut self) -> usize {
        self.counts.add(Total::Events, 1);
        let handle = self.handle();
        self.events.insert(handle, None);
        handle
    }

    pub fn drop_event(&mut self, event: usize) -> Result<(), Fault> {
        self.events.remove(&event).map(drop).ok_or_else(|| invalid_handle("event"))
    }

    /// Waits for an event on a stream, which only matters between streams.
    pub fn use_event(&mut self, event: usize) -> Result<(), Fault> {
        self.counts.add(Total::Events, 1);
        if self.events.contains_key(&event) { Ok(()) } else { Err(invalid_handle("event")) }
    }

    pub fn record_event(&mut self, event: usize) -> Result<(), Fault> {
        self.use_event(event)?;
        self.enqueue(NodeKind::Event, move |driver| {
            // Unless it was destroyed meanwhile.
            driver.events.entry(event).and_modify(|reached| *reached = Some(Instant::now()));
            Ok(())
        });
        Ok(())
    }

    /// Returns the milliseconds that the device needed from one event to another one.
    pub fn elapsed(&mut self, start: usize, end: usize) -> Result<f32, Fault> {
        match (self.event_time(start), self.event_time(end)) {
            (Some(start), Some(end)) => Ok(end.duration_since(start).as_secs_f32() * 1e3),
            _ => Err(Fault::new(Code::NotReady, "the device has not reached both events")),
        }
    }

    fn event_time(&self, event: usize) -> Option<Instant> {
        self.events.get(&event).copied().flatten()
    }
}

fn invalid_handle(what: &str) -> Fault {
    Fault::new(Code::InvalidHandle, format!("this {what} does not exist"))
}
