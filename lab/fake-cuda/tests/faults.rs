//! Operations that a GPU would reject, or that would break it, return an error with the reason.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]
#![expect(unsafe_code, reason = "a download goes to an address")]

mod common;

use common::{Device, INCREMENT};
use ntl_fake_cuda::{Code, Driver, Fault, Matrix, Memory, NodeKind, Product, Scalar};

/// Asserts the code, and that the message contains all of these parts.
fn assert_fault(result: Result<(), Fault>, code: Code, parts: &[&str]) {
    let fault = result.unwrap_err();
    assert_eq!(fault.code, code, "{fault}");
    for part in parts {
        assert!(fault.to_string().contains(part), "'{part}' is not in: {fault}");
    }
}

/// Returns a batch of two products: `a` of 2 x 3, `b` of 3 x 4, `c` of 2 x 4, all packed.
fn product(device: &mut Device) -> Product {
    let mut matrix = |rows: usize, columns: usize| Matrix {
        address: device.put(&vec![1f32; 2 * rows * columns]),
        scalar: Scalar::F32,
        leading: rows as i64,
        stride: (rows * columns) as i64,
        transposed: false,
    };
    let a = matrix(2, 3);
    let b = matrix(3, 4);
    let c = matrix(2, 4);
    Product { m: 2, n: 4, k: 3, alpha: 1.0, beta: 0.0, a, b, c, batch: 2 }
}

#[test]
fn a_stride_beyond_the_buffer_is_a_fault() {
    let changed = |change: fn(&mut Product)| {
        let mut device = Device::new();
        let mut product = product(&mut device);
        device.driver.product("product", &product).unwrap();
        change(&mut product);
        device.driver.product("product", &product).and_then(|()| device.driver.finish())
    };
    assert_fault(
        changed(|product| product.a.stride += 1),
        Code::IllegalAddress,
        &["product of 2 x 4 x 3, 2 times", "a of 2 x 3", "52 bytes", "the nearest allocation has 48 bytes"],
    );
    assert_fault(changed(|product| product.b.leading = 4), Code::IllegalAddress, &["b of 3 x 4"]);
    assert_fault(changed(|product| product.b.leading = 2), Code::InvalidValue, &["b has 3 rows"]);
    assert_fault(changed(|product| product.c.stride = 4), Code::InvalidValue, &["overlap"]);
}

#[test]
fn an_error_names_a_missing_kernel() {
    let mut device = Device::new();
    assert!(device.function(INCREMENT, "increment").is_ok());
    let result = device.function(INCREMENT, "decrement").map(|_| ());
    assert_fault(result, Code::NotFound, &["there is no kernel decrement"]);
}

#[test]
fn an_error_names_an_unknown_instruction() {
    let mut device = Device::new();
    let ptx = INCREMENT.replace("add.f32 %f2, %f1, 0f3F800000", "frob.f32 %f2, %f1");
    let result = device.function(&ptx, "increment").map(|_| ());
    assert_fault(
        result,
        Code::NotSupported,
        &["kernel increment", "unknown instruction 'frob.f32 %f2 , %f1'"],
    );
}

#[test]
fn an_access_outside_an_allocation_names_the_kernel_the_thread_and_the_allocation() {
    let mut device = Device::new();
    let function = device.function(INCREMENT, "increment").unwrap();
    let from = device.put(&[0f32; 70]);
    let to = device.put(&[0f32; 70]);
    device.launch(function, (2, 64), &[from, to], &[70]).unwrap();
    assert_fault(
        device.launch(function, (2, 64), &[from, to], &[71]),
        Code::IllegalAddress,
        &[
            "kernel increment",
            "thread [6, 0, 0] of block [1, 0, 0]",
            "load of 4 bytes",
            "280 bytes",
            "280 bytes after its start",
        ],
    );
}

#[test]
fn after_a_fault_of_a_kernel_every_call_fails_with_the_same_fault() {
    let mut device = Device::new();
    let function = device.function(INCREMENT, "increment").unwrap();
    let buffer = device.put(&[0f32; 4]);
    let grid = device.launch(function, (0, 32), &[buffer, buffer], &[4]).unwrap_err();
    assert_eq!(grid.code, Code::InvalidValue, "this fault is the call's, not the kernel's");
    device.launch(function, (1, 32), &[buffer, buffer], &[4]).unwrap();
    let first = device.launch(function, (1, 32), &[buffer, buffer], &[5]).unwrap_err();
    assert_eq!(device.launch(function, (1, 32), &[buffer, buffer], &[4]), Err(first.clone()));
    assert_eq!(device.driver.check_alive(), Err(first));
}

/// Adds 1 to four numbers in a graph. Returns the device, the numbers' address and the executable graph.
fn graph_of_an_increment() -> (Device, usize, usize) {
    let mut device = Device::new();
    let function = device.function(INCREMENT, "increment").unwrap();
    let numbers = device.put(&[1f32; 4]);
    let stream = device.driver.new_stream();
    device.driver.begin_capture(stream).unwrap();
    device.launch(function, (1, 32), &[numbers, numbers], &[4]).unwrap();
    let graph = device.driver.end_capture(stream).unwrap();
    assert_eq!(device.driver.graph_nodes(graph), Ok(vec![NodeKind::Kernel]));
    let executable = device.driver.instantiate(graph).unwrap();
    device.driver.destroy_graph(graph).unwrap();
    (device, numbers, executable)
}

#[test]
fn a_graph_does_its_work_in_each_replay_and_not_when_it_is_recorded() {
    let (mut device, numbers, executable) = graph_of_an_increment();
    assert_eq!(device.get::<f32>(numbers, 4), [1.0; 4]);
    for replays in 1..=3u8 {
        device.driver.launch_graph(executable).unwrap();
        assert_eq!(device.get::<f32>(numbers, 4), [1.0 + f32::from(replays); 4]);
    }
    device.driver.destroy_executable(executable).unwrap();
    assert_fault(device.driver.launch_graph(executable), Code::InvalidHandle, &["this graph does not exist"]);
}

#[test]
fn a_replay_over_memory_that_was_freed_is_a_fault() {
    let (mut device, numbers, executable) = graph_of_an_increment();
    device.driver.free(numbers).unwrap();
    device.driver.launch_graph(executable).unwrap();
    assert_fault(device.driver.finish(), Code::IllegalAddress, &["kernel increment"]);
}

#[test]
fn a_captured_stream_records_the_calls_of_all_threads_and_none_on_other_streams() {
    let mut device = Device::new();
    let [captured, other] = [(); 2].map(|()| device.driver.new_stream());
    let [recorded, filled] = [(); 2].map(|()| device.put(&[0u8; 64]));
    device.driver.begin_capture(captured).unwrap();
    let driver = &mut device.driver;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            driver.on(captured, |driver| driver.fill(recorded, 1, 64));
            driver.on(other, |driver| driver.fill(filled, 1, 64));
            let ended = driver.end_capture(captured).map(drop);
            assert_fault(ended, Code::WrongThread, &["another thread"]);
        });
    });
    let graph = device.driver.end_capture(captured).unwrap();
    assert_eq!(device.driver.graph_nodes(graph), Ok(vec![NodeKind::Fill]));
    assert_eq!(device.get::<u8>(recorded, 64), [0; 64]);
    assert_eq!(device.get::<u8>(filled, 64), [1; 64]);
}

#[test]
fn a_thread_that_waits_for_a_captured_stream_makes_the_recording_invalid() {
    let mut device = Device::new();
    let stream = device.driver.new_stream();
    device.driver.begin_capture(stream).unwrap();
    let driver = &mut device.driver;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            driver.synchronise().unwrap();
            let waited = driver.on(stream, Driver::synchronise);
            assert_fault(waited, Code::CaptureUnsupported, &["waiting for the device"]);
        });
    });
    let ended = device.driver.end_capture(stream).map(drop);
    assert_fault(ended, Code::CaptureInvalidated, &["waiting for the device"]);
}

#[test]
fn calls_that_cannot_be_recorded_make_the_recording_invalid() {
    let mut device = Device::new();
    let stream = device.driver.new_stream();
    assert_fault(device.driver.begin_capture(0), Code::CaptureUnsupported, &["the default stream"]);
    device.driver.begin_capture(stream).unwrap();
    assert_fault(device.driver.synchronise(), Code::CaptureUnsupported, &["waiting for the device"]);
    let ended = device.driver.end_capture(stream).map(|_| ());
    assert_fault(ended, Code::CaptureInvalidated, &["waiting for the device"]);
    let again = device.driver.end_capture(stream).map(|_| ());
    assert_fault(again, Code::InvalidValue, &["this stream is not captured"]);
    // Memory is allocated, but a program that looks at the nodes sees it.
    device.driver.begin_capture(stream).unwrap();
    let memory = device.driver.allocate(64).unwrap();
    device.driver.fill(memory, 0, 64);
    device.driver.free(memory).unwrap();
    let graph = device.driver.end_capture(stream).unwrap();
    let kinds = [NodeKind::Allocation, NodeKind::Fill, NodeKind::Release];
    assert_eq!(device.driver.graph_nodes(graph), Ok(kinds.to_vec()));
}

#[test]
fn an_invalid_pointer_is_a_fault_even_if_no_thread_uses_it() {
    let mut device = Device::new();
    let function = device.function(INCREMENT, "increment").unwrap();
    let from = device.put(&[0f32; 4]);
    let to = device.put(&[0f32; 4]);
    device.driver.free(to).unwrap();
    assert_fault(
        device.launch(function, (1, 32), &[from, to], &[0]),
        Code::IllegalAddress,
        &["kernel increment", "pointer increment_param_1"],
    );
    assert_fault(device.driver.free(to), Code::InvalidValue, &["not a live allocation"]);
}

#[test]
fn no_more_memory_is_allocated_than_the_device_has() {
    let mut memory = Memory::new(1000);
    let first = memory.allocate(600).unwrap();
    let error = memory.allocate(401).map(|_| ());
    assert_fault(error, Code::OutOfMemory, &["401 bytes, but only 400 are left"]);
    memory.free(first).unwrap();
    assert!(memory.allocate(1000).is_ok());
}

#[test]
fn a_freed_address_is_not_used_again_soon() {
    let mut memory = Memory::new(1 << 20);
    let first = memory.allocate(600).unwrap();
    memory.free(first).unwrap();
    let later: Vec<usize> = (0..100).map(|_| memory.allocate(600).unwrap()).collect();
    assert!(!later.contains(&first));
    let error = memory.check("a load", first + 8, 4).map(|_| ());
    assert_fault(
        error,
        Code::IllegalAddress,
        &["outside of live memory", "an allocation of 600 bytes at", "was freed"],
    );
}

#[test]
fn addresses_have_to_be_aligned() {
    let mut device = Device::new();
    let function = device.function(INCREMENT, "increment").unwrap();
    let buffer = device.put(&[0f32; 4]);
    let result = device.launch(function, (1, 32), &[buffer + 2, buffer], &[1]);
    assert_fault(result, Code::MisalignedAddress, &["load of 4 bytes"]);
}

#[test]
fn grids_and_blocks_have_limits() {
    let mut device = Device::new();
    let function = device.function(INCREMENT, "increment").unwrap();
    let buffer = device.put(&[0f32; 4]);
    for sizes in [(0, 32), (1, 0), (1, 1025), (u32::MAX, 1)] {
        let result = device.launch(function, sizes, &[buffer, buffer], &[4]);
        assert_fault(result, Code::InvalidValue, &["kernel increment"]);
    }
}

#[test]
fn a_kernel_has_no_more_threads_than_it_was_compiled_for() {
    let mut device = Device::new();
    let ptx = INCREMENT.replacen(")\n{", ")\n.maxntid 64, 1, 1\n{", 1);
    let function = device.function(&ptx, "increment").unwrap();
    let buffer = device.put(&[0f32; 4]);
    device.launch(function, (1, 64), &[buffer, buffer], &[4]).unwrap();
    let result = device.launch(function, (1, 65), &[buffer, buffer], &[4]);
    assert_fault(result, Code::InvalidValue, &["a block of 65 threads; the maximum is 64"]);
}

#[test]
fn copies_outside_their_allocations_are_faults() {
    let mut device = Device::new();
    let from = device.put(&[1u8; 8]);
    let to = device.put(&[2u8; 8]);
    device.driver.copy(to, from + 4, 4);
    assert_eq!(device.get::<u8>(to, 8), [1, 1, 1, 1, 2, 2, 2, 2]);
    let mut assert_illegal = |enqueue: &dyn Fn(&mut Driver), what: &str| {
        enqueue(&mut device.driver);
        assert_fault(device.driver.finish(), Code::IllegalAddress, &[what]);
    };
    assert_illegal(&|driver| driver.copy(to, from + 4, 5), "the source of a copy");
    assert_illegal(&|driver| driver.copy(to + 1, from, 8), "the target of a copy");
    assert_illegal(&|driver| driver.fill(to, 0, 9), "a fill");
}

#[test]
fn memory_that_nothing_has_written_cannot_be_read() {
    let mut device = Device::new();
    let function = device.function(INCREMENT, "increment").unwrap();
    let to = device.driver.allocate(16).unwrap();
    let from = device.put(&[1f32; 3]);
    device.launch(function, (1, 32), &[from, to], &[3]).unwrap();
    assert_eq!(device.get::<f32>(to, 3), [2.0; 3]);
    assert_fault(
        device.launch(function, (1, 32), &[to, to], &[4]),
        Code::LaunchFailed,
        &["kernel increment", "thread [3, 0, 0] of block [0, 0, 0]", "12 bytes after the start"],
    );

    let mut device = Device::new();
    let [whole, part] = [(); 2].map(|()| device.driver.allocate(130).unwrap());
    device.driver.fill(whole, 7, 130);
    device.driver.copy(part + 1, whole + 1, 128);
    assert_eq!(device.get::<u8>(part + 1, 128), [7; 128]);
    let moved = device.driver.allocate(130).unwrap();
    device.driver.copy(moved, part + 1, 128);
    assert_eq!(device.get::<u8>(moved, 128), [7; 128]);
    let mut byte = [0u8];
    // SAFETY: the array has one byte.
    let read = unsafe { device.driver.download(byte.as_mut_ptr(), part + 129, 1) };
    assert_fault(read, Code::LaunchFailed, &["a download of 1 bytes, 129 bytes after the start"]);

    let mut device = Device::new();
    let mut product = product(&mut device);
    product.c.address = device.driver.allocate(64).unwrap();
    device.driver.product("product", &product).unwrap();
    assert_eq!(device.get::<f32>(product.c.address, 16), [3.0; 16]);
    // The first member of the batch, and the first column of the second one.
    product.b.address = device.driver.allocate(96).unwrap();
    device.driver.fill(product.b.address, 0, 60);
    device.driver.product("product", &product).unwrap();
    assert_eq!(device.get::<f32>(product.c.address, 10), [0.0; 10]);
    let function = device.function(INCREMENT, "increment").unwrap();
    assert_fault(
        device.launch(function, (1, 32), &[product.c.address, product.c.address], &[11]),
        Code::LaunchFailed,
        &["thread [10, 0, 0]", "40 bytes after the start"],
    );
}

#[test]
fn work_is_done_when_the_host_waits_and_until_then_keeps_the_memory_that_was_freed_after_it() {
    let mut device = Device::new();
    let [from, to] = [0, 1].map(|number: u8| device.put(&[number; 4]));
    let [start, end] = [(); 2].map(|()| device.driver.new_event());
    device.driver.record_event(start).unwrap();
    device.driver.copy(to, from, 4);
    device.driver.record_event(end).unwrap();
    let used = device.driver.memory.used();
    device.driver.free(from).unwrap();
    assert_eq!(device.driver.memory.used(), used - 4, "later allocations can use it immediately");
    assert_fault(device.driver.free(from), Code::InvalidValue, &["not a live allocation"]);
    assert_fault(device.driver.elapsed(start, end).map(drop), Code::NotReady, &[]);
    assert_eq!(device.get::<u8>(to, 4), [0; 4]);
    assert!(device.driver.elapsed(start, end).unwrap() >= 0.0);
    device.driver.copy(to, from, 4);
    assert_fault(device.driver.synchronise(), Code::IllegalAddress, &["was freed"]);
}

/// The first half of a warp waits for all lanes, the second half only for itself.
#[test]
fn it_is_a_fault_if_a_lane_waits_for_lanes_that_never_arrive() {
    let ptx = "
.visible .entry parted()
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 16;
    @%p1 bra $first;
    bra.uni $end;
$first:
    shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;
$end:
    bar.warp.sync -1;
    ret;
}
";
    let mut device = Device::new();
    let function = device.function(ptx, "parted").unwrap();
    assert_fault(device.launch(function, (1, 32), &[], &[]), Code::LaunchFailed, &["lanes 0xffff0000"]);
}
