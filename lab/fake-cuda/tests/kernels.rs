//! Checks the results of kernels against the PTX specification.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::{Device, INCREMENT};
use ntl_fake_cuda::Fault;

#[test]
fn a_kernel_runs_over_all_blocks_and_leaves_other_memory_unchanged() {
    let mut device = Device::new();
    let function = device.function(INCREMENT, "increment").unwrap();
    let values: Vec<f32> = (0..1000u16).map(f32::from).collect();
    let from = device.put(&values);
    let to = device.put(&[-1f32; 1001]);
    device.launch(function, (8, 128), &[from, to], &[1000]).unwrap();
    let mut want: Vec<f32> = values.iter().map(|value| value + 1.0).collect();
    want.push(-1.0);
    assert_eq!(device.get::<f32>(to, 1001), want);
}

/// Runs one warp over a body that computes `%r10`, or `%rd10` if `wide`, from the number of the thread in
/// `%r1`.
fn one_warp(body: &str, wide: bool) -> Vec<u64> {
    let mut device = Device::new();
    let (store, mov) = if wide { ("%rd10", "") } else { ("%rd9", "cvt.u64.u32 %rd9, %r10;") };
    let ptx = format!(
        "
.visible .entry body(.param .u64 body_param_0)
{{
    .reg .pred %p<4>;
    .reg .b16 %rs<8>;
    .reg .f32 %f<8>;
    .reg .f64 %fd<8>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<12>;
    mov.u32 %r1, %tid.x;
    {body}
    {mov}
    ld.param.u64 %rd1, [body_param_0];
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r1, 8;
    add.s64 %rd4, %rd2, %rd3;
    st.global.u64 [%rd4], {store};
    ret;
}}
"
    );
    let function = device.function(&ptx, "body").unwrap();
    let out = device.put(&[0u64; 32]);
    device.launch(function, (1, 32), &[out], &[]).unwrap();
    device.get::<u64>(out, 32)
}

fn numbers(f: impl Fn(u64) -> u64) -> Vec<u64> {
    (0..32).map(f).collect()
}

#[test]
fn threads_that_diverge_in_loops_and_branches_converge_again() {
    // Sums the odd numbers up to the thread's own number, and then exchanges sums with the neighbour.
    let body = "
    mov.u32 %r2, 0;
    mov.u32 %r3, 0;
$loop:
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra $done;
    and.b32 %r4, %r2, 1;
    setp.eq.s32 %p2, %r4, 0;
    @%p2 bra $even;
    add.s32 %r3, %r3, %r2;
$even:
    add.s32 %r2, %r2, 1;
    bra.uni $loop;
$done:
    shfl.sync.bfly.b32 %r10, %r3, 1, 31, -1;";
    let sum = |n: u64| (0..n).filter(|i| i % 2 == 1).sum::<u64>();
    assert_eq!(one_warp(body, false), numbers(|thread| sum(thread ^ 1)));
}

#[test]
fn predicates_guard_single_instructions() {
    let body = "
    mov.u32 %r10, 7;
    setp.gt.u32 %p1, %r1, 9;
    @%p1 mov.u32 %r10, 8;
    @!%p1 add.s32 %r10, %r10, -1;";
    assert_eq!(one_warp(body, false), numbers(|thread| if thread > 9 { 8 } else { 6 }));
}

#[test]
fn shuffles_read_the_named_lane() {
    let by = |how: &str, operands: &str| {
        one_warp(&format!("shfl.sync.{how}.b32 %r10, %r1, {operands}, -1;"), false)
    };
    assert_eq!(by("bfly", "5, 31"), numbers(|lane| lane ^ 5));
    assert_eq!(by("down", "4, 31"), numbers(|lane| if lane + 4 < 32 { lane + 4 } else { lane }));
    assert_eq!(by("up", "4, 0"), numbers(|lane| if lane >= 4 { lane - 4 } else { lane }));
    assert_eq!(by("idx", "3, 31"), numbers(|_| 3));
    // Segments of eight lanes.
    assert_eq!(by("idx", "3, 6175"), numbers(|lane| lane / 8 * 8 + 3));
}

#[test]
fn votes_and_active_lanes() {
    let body = "setp.lt.u32 %p1, %r1, 5; vote.sync.ballot.b32 %r10, %p1, -1;";
    assert_eq!(one_warp(body, false), numbers(|_| 0x1f));
    let body = "mov.u32 %r10, 0; setp.lt.u32 %p1, %r1, 5; @%p1 activemask.b32 %r10;";
    assert_eq!(one_warp(body, false), numbers(|thread| if thread < 5 { 0x1f } else { 0 }));
}

/// The expected result of a thread.
type Want = fn(u64) -> u64;

#[test]
fn integers_wrap_shift_and_extend() {
    let signed = |value: i32| u64::from(value as u32);
    let cases: [(&str, Want); 12] = [
        ("sub.s32 %r10, 3, %r1;", |n| u64::from((3 - n as i32) as u32)),
        ("shl.b32 %r10, 1, %r1;", |n| 1 << n),
        ("add.s32 %r2, %r1, 16; shl.b32 %r10, 1, %r2;", |n| if n < 16 { 1 << (n + 16) } else { 0 }),
        ("mov.u32 %r2, 0x80000000; shr.s32 %r10, %r2, %r1;", |n| u64::from((i32::MIN >> n) as u32)),
        ("mov.u32 %r2, -100; div.s32 %r10, %r2, 7;", |_| u64::from((-100i32 / 7) as u32)),
        ("mul.hi.u32 %r10, %r1, 0x80000000;", |n| n / 2),
        ("cvt.u16.u32 %rs1, %r1; neg.s16 %rs2, %rs1; cvt.s32.s16 %r10, %rs2;", |n| {
            u64::from((-(n as i32)) as u32)
        }),
        ("min.s32 %r10, %r1, -1;", |_| u64::from(u32::MAX)),
        ("prmt.b32 %r10, %r1, 0x44332211, 0x0750;", |n| n | 0x22 << 8 | 0x44 << 16 | n << 24),
        ("mov.b32 %r2, 0xff02ff03; dp4a.s32.s32 %r10, %r2, 0x01020304, %r1;", |n| {
            u64::from((n as i32 + 4 * 3 - 3 + 2 * 2 - 1) as u32)
        }),
        ("lop3.b32 %r10, %r1, 12, 10, 0x6a;", |n| n & 12 ^ 10),
        ("clz.b32 %r10, %r1;", |n| u64::from((n as u32).leading_zeros())),
    ];
    assert_eq!(signed(-1), 0xffff_ffff);
    for (body, want) in cases {
        assert_eq!(one_warp(body, false), numbers(want), "{body}");
    }
    let body = "mul.wide.s32 %rd10, %r1, -3;";
    assert_eq!(one_warp(body, true), numbers(|n| (-3 * n as i64) as u64));
    let body = "cvt.u64.u32 %rd5, %r1; mov.u64 %rd6, 0xff; bfi.b64 %rd10, %rd5, %rd6, 4, 8;";
    assert_eq!(one_warp(body, true), numbers(|n| 0xf | n << 4));
}

#[test]
fn carries_propagate_from_one_instruction_to_the_next() {
    let body = "
    mov.u32 %r2, 0xffffffff;
    add.cc.u32 %r3, %r2, %r1;
    addc.u32 %r4, %r1, 5;
    mov.b64 %rd10, {%r3, %r4};";
    assert_eq!(one_warp(body, true), numbers(|n| (5 << 32) + (n << 32) + 0xffff_ffff + n));
    let body = "
    sub.cc.u32 %r3, %r1, 9;
    subc.u32 %r4, 1, 0;
    mov.b64 %rd10, {%r3, %r4};";
    assert_eq!(one_warp(body, true), numbers(|n| (1 << 32) + n - 9));
}

#[test]
fn floats_are_rounded_once() {
    let bits = |value: f32| u64::from(value.to_bits());
    let float = |body: &str| one_warp(&format!("cvt.rn.f32.u32 %f1, %r1; {body} mov.b32 %r10, %f2;"), false);
    assert_eq!(float("mul.f32 %f2, %f1, 0f3DCCCCCD;"), numbers(|n| bits(n as f32 * 0.1)));
    assert_eq!(float("div.rn.f32 %f2, %f1, 0f40400000;"), numbers(|n| bits(n as f32 / 3.0)));
    assert_eq!(
        float("fma.rn.f32 %f2, %f1, %f1, 0f3DCCCCCD;"),
        numbers(|n| bits((n as f32).mul_add(n as f32, 0.1)))
    );
    assert_eq!(float("sqrt.rn.f32 %f2, %f1;"), numbers(|n| bits((n as f32).sqrt())));
    assert_eq!(float("ex2.approx.ftz.f32 %f2, %f1;"), numbers(|n| bits((n as f32).exp2())));
    // Towards minus infinity: 2^24 + 1 is not representable in f32.
    assert_eq!(float("fma.rm.f32 %f2, 0f4B800000, 0f3F800000, 0f3F800000;"), numbers(|_| bits(16_777_216.0)));
    assert_eq!(float("cvt.rmi.f32.f32 %f3, 0fBF000000; mov.f32 %f2, %f3;"), numbers(|_| bits(-1.0)));
    assert_eq!(float("max.f32 %f2, %f1, 0f7FC00000;"), numbers(|n| bits(n as f32)));
    let half = |value: f32| u64::from(half::bf16::from_f32(value).to_bits());
    let body = "cvt.rn.f32.u32 %f1, %r1; mul.f32 %f2, %f1, 0f3DCCCCCD; cvt.rn.bf16.f32 %rs1, %f2; cvt.u32.u16 %r10, %rs1;";
    assert_eq!(one_warp(body, false), numbers(|n| half(n as f32 * 0.1)));
    let body = "cvt.rn.f32.u32 %f1, %r1; sub.f32 %f2, 0f3F000000, %f1; cvt.rzi.s32.f32 %r10, %f2;";
    assert_eq!(one_warp(body, false), numbers(|n| u64::from((0.5 - n as f32) as i32 as u32)));
}

#[test]
fn packed_16_bit_numbers_are_computed_separately() {
    let both = |high: f32, low: f32| {
        let bits = |value: f32| u64::from(half::bf16::from_f32(value).to_bits());
        bits(high) << 16 | bits(low)
    };
    let body = "
    cvt.rn.f32.u32 %f1, %r1;
    cvt.rn.bf16x2.f32 %r2, %f1, 0f3F800000;
    fma.rn.bf16x2 %r3, %r2, %r2, %r2;
    neg.bf16x2 %r10, %r3;";
    assert_eq!(one_warp(body, false), numbers(|n| both(-((n * n + n) as f32), -2.0)));
}

#[test]
fn comparisons_handle_nan() {
    let holds = |how: &str| {
        one_warp(&format!("setp.{how}.f32 %p1, 0f7FC00000, 0f3F800000; selp.b32 %r10, 1, 0, %p1;"), false)[0]
    };
    for ordered in ["eq", "ne", "lt", "le", "gt", "ge"] {
        assert_eq!(holds(ordered), 0, "{ordered}");
    }
    for unordered in ["equ", "neu", "ltu", "leu", "gtu", "geu"] {
        assert_eq!(holds(unordered), 1, "{unordered}");
    }
}

#[test]
fn vectors_and_local_memory_keep_stored_values() {
    let body = "
    .local .align 8 .b8 depot[16];
    .reg .b64 %SP, %SPL;
    mov.u64 %SPL, depot;
    cvta.local.u64 %SP, %SPL;
    add.s32 %r2, %r1, 1;
    st.local.v2.u32 [%SPL+8], {%r1, %r2};
    ld.u32 %r3, [%SP+8];
    ld.local.u32 %r4, [%SPL+12];
    mad.lo.s32 %r10, %r3, 100, %r4;";
    assert_eq!(one_warp(body, false), numbers(|n| 101 * n + 1));
}

/// Each block sums its threads' numbers in a tree over shared memory, and adds the sum to a number shared by
/// all blocks.
const TREE: &str = "
.func (.param .b32 result) twice(.param .b32 twice_param_0)
{
    .reg .b32 %r<3>;
    ld.param.u32 %r1, [twice_param_0];
    add.s32 %r2, %r1, %r1;
    st.param.b32 [result+0], %r2;
    ret;
}
.visible .entry tree(.param .u64 tree_param_0)
{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<4>;
    .shared .align 4 .b8 sums[1024];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, sums;
    shl.b32 %r3, %r1, 2;
    add.s32 %r4, %r2, %r3;
    st.shared.u32 [%r4], %r1;
    mov.u32 %r5, 128;
$step:
    bar.sync 0;
    setp.ge.u32 %p1, %r1, %r5;
    @%p1 bra $skip;
    shl.b32 %r6, %r5, 2;
    add.s32 %r7, %r4, %r6;
    ld.shared.u32 %r8, [%r7];
    ld.shared.u32 %r9, [%r4];
    add.s32 %r10, %r8, %r9;
    st.shared.u32 [%r4], %r10;
$skip:
    shr.u32 %r5, %r5, 1;
    setp.ne.s32 %p2, %r5, 0;
    @%p2 bra $step;
    setp.ne.s32 %p3, %r1, 0;
    @%p3 bra $end;
    ld.shared.u32 %r11, [sums];
    { // call
    .param .b32 given;
    st.param.b32 [given+0], %r11;
    .param .b32 back;
    call.uni (back), twice, (given);
    ld.param.b32 %r12, [back+0];
    }
    ld.param.u64 %rd1, [tree_param_0];
    cvta.to.global.u64 %rd2, %rd1;
    atom.global.add.u32 %r13, [%rd2], %r12;
$end:
    ret;
}
";

#[test]
fn blocks_share_memory_wait_at_barriers_and_add_atomically() {
    let mut device = Device::new();
    let function = device.function(TREE, "tree").unwrap();
    let out = device.put(&[0u32]);
    device.launch(function, (3, 256), &[out], &[]).unwrap();
    assert_eq!(device.get::<u32>(out, 1), [3 * 2 * 255 * 128]);
}

/// Each thread reads the number that its left or right neighbour wrote to shared memory.
fn neighbours(barrier: &str, distance: i32) -> Result<Vec<u32>, Fault> {
    let ptx = format!(
        "
.visible .entry neighbours(.param .u64 neighbours_param_0)
{{
    .reg .b32 %r<12>;
    .reg .b64 %rd<6>;
    .shared .align 4 .b8 kept[512];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, kept;
    shl.b32 %r3, %r1, 2;
    add.s32 %r4, %r2, %r3;
    st.shared.u32 [%r4], %r1;
    {barrier}
    add.s32 %r5, %r1, {distance};
    and.b32 %r6, %r5, 127;
    shl.b32 %r7, %r6, 2;
    add.s32 %r8, %r2, %r7;
    ld.shared.u32 %r9, [%r8];
    bar.sync 0;
    mov.u32 %r10, %ctaid.x;
    mad.lo.s32 %r11, %r10, 128, %r1;
    ld.param.u64 %rd1, [neighbours_param_0];
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r11, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r9;
    ret;
}}
"
    );
    let mut device = Device::new();
    let function = device.function(&ptx, "neighbours").unwrap();
    let out = device.put(&[0u32; 256]);
    device.launch(function, (2, 128), &[out], &[])?;
    Ok(device.get::<u32>(out, 256))
}

#[test]
fn a_missing_barrier_is_a_race_also_within_a_warp() {
    for distance in [-1, 1] {
        let want: Vec<u32> = (0..256).map(|thread: i32| (thread + distance).rem_euclid(128) as u32).collect();
        assert_eq!(neighbours("bar.sync 0;", distance), Ok(want));
        let error = neighbours("", distance).unwrap_err();
        assert!(error.to_string().contains("kernel neighbours: a race: "), "{error}");
        // Orders only the lanes of each warp, and the threads at its ends have neighbours in other warps.
        let error = neighbours("bar.warp.sync -1;", distance).unwrap_err();
        assert!(error.to_string().contains("a race: "), "{error}");
    }
    let same_warp = |barrier: &str| neighbours(barrier, 0);
    assert!(same_warp("").is_ok(), "each thread reads its own number");
}

/// The lanes of one warp exchange numbers twice through the same memory.
#[test]
fn lanes_of_a_warp_are_ordered_by_a_barrier_of_the_warp() {
    let exchanged = |first: &str, second: &str| {
        let ptx = format!(
            "
.visible .entry exchanged()
{{
    .reg .b32 %r<9>;
    .shared .align 4 .b8 kept[128];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, kept;
    shl.b32 %r3, %r1, 2;
    add.s32 %r4, %r2, %r3;
    st.shared.u32 [%r4], %r1;
    {first}
    xor.b32 %r5, %r1, 1;
    shl.b32 %r6, %r5, 2;
    add.s32 %r7, %r2, %r6;
    ld.shared.u32 %r8, [%r7];
    {second}
    st.shared.u32 [%r4], %r8;
    ret;
}}
"
        );
        let mut device = Device::new();
        let function = device.function(&ptx, "exchanged").unwrap();
        device.launch(function, (2, 32), &[], &[])
    };
    const SYNC: &str = "bar.warp.sync -1;";
    assert_eq!(exchanged(SYNC, SYNC), Ok(()));
    for (first, second) in [(SYNC, ""), ("", SYNC)] {
        let error = exchanged(first, second).unwrap_err();
        assert!(
            error.to_string().contains("4 bytes at") && error.to_string().contains("a race: "),
            "{error}"
        );
    }
}

#[test]
fn module_variables_have_their_initial_values_and_assertions_print_their_text() {
    let ptx = "
.extern .func __assertfail
(
    .param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e
)
;
.global .align 1 .b8 $str[6] = {105, 32, 60, 32, 53};
.global .align 4 .u32 table[2] = {7, 9};
.visible .entry check(.param .u64 check_param_0)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<8>;
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 5;
    @%p1 bra $good;
    mov.u64 %rd1, $str;
    cvta.global.u64 %rd2, %rd1;
    {
    .param .b64 param0;
    st.param.b64 [param0+0], %rd2;
    .param .b64 param1;
    st.param.b64 [param1+0], %rd2;
    .param .b32 param2;
    st.param.b32 [param2+0], 63;
    .param .b64 param3;
    st.param.b64 [param3+0], %rd2;
    .param .b64 param4;
    st.param.b64 [param4+0], 1;
    call.uni __assertfail, (param0, param1, param2, param3, param4);
    }
$good:
    ld.global.u32 %r2, [table+4];
    ld.param.u64 %rd3, [check_param_0];
    cvta.to.global.u64 %rd4, %rd3;
    st.global.u32 [%rd4], %r2;
    ret;
}
";
    let mut device = Device::new();
    let function = device.function(ptx, "check").unwrap();
    let out = device.put(&[0u32]);
    device.launch(function, (1, 5), &[out], &[]).unwrap();
    assert_eq!(device.get::<u32>(out, 1), [9]);
    let fault = device.launch(function, (1, 6), &[out], &[]).unwrap_err();
    assert_eq!(fault.to_string(), "kernel check: an assertion failed: i < 5");
}
