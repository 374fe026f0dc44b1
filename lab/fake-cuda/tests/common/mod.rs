//! A separate device for a test, and kernels written as PTX.

#![expect(unsafe_code, reason = "copies are from and to slices")]

use ntl_fake_cuda::{Driver, Fault, Launch};

pub(crate) const HEAD: &str = ".version 9.0\n.target sm_90\n.address_size 64\n";

/// `out[i] = in[i] + 1` for `i` below `n`.
pub(crate) const INCREMENT: &str = "
.visible .entry increment(
    .param .u64 increment_param_0,
    .param .u64 increment_param_1,
    .param .u32 increment_param_2
)
{
    .reg .pred %p<2>;
    .reg .f32 %f<3>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;

    ld.param.u64 %rd1, [increment_param_0];
    ld.param.u64 %rd2, [increment_param_1];
    ld.param.u32 %r1, [increment_param_2];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra $L__BB0_2;
    cvta.to.global.u64 %rd3, %rd1;
    mul.wide.s32 %rd4, %r5, 4;
    add.s64 %rd5, %rd3, %rd4;
    ld.global.f32 %f1, [%rd5];
    add.f32 %f2, %f1, 0f3F800000;
    cvta.to.global.u64 %rd6, %rd2;
    add.s64 %rd7, %rd6, %rd4;
    st.global.f32 [%rd7], %f2;
$L__BB0_2:
    ret;
}
";

pub(crate) struct Device {
    pub(crate) driver: Driver,
}

impl Device {
    pub(crate) fn new() -> Self {
        Self { driver: Driver::new() }
    }

    pub(crate) fn function(&mut self, ptx: &str, name: &str) -> Result<usize, Fault> {
        let module = self.driver.load_module(&format!("{HEAD}{ptx}"))?;
        self.driver.function(module, name)
    }

    pub(crate) fn put<T: Copy>(&mut self, values: &[T]) -> usize {
        let bytes = size_of_val(values);
        let address = self.driver.allocate(bytes).unwrap();
        // SAFETY: the slice has this many bytes.
        unsafe { self.driver.upload(address, values.as_ptr().cast(), bytes) }.unwrap();
        address
    }

    pub(crate) fn get<T: Copy + Default>(&mut self, address: usize, count: usize) -> Vec<T> {
        let mut values = vec![T::default(); count];
        // SAFETY: the vector has this many bytes.
        unsafe { self.driver.download(values.as_mut_ptr().cast(), address, size_of::<T>() * count) }.unwrap();
        values
    }

    /// Launches a kernel with parameters of 8 and of 4 bytes, and waits for it.
    pub(crate) fn launch(
        &mut self,
        function: usize,
        (grid, block): (u32, u32),
        wide: &[usize],
        narrow: &[u32],
    ) -> Result<(), Fault> {
        let wide = wide.iter().map(|value| value.to_le_bytes().to_vec());
        let parameters: Vec<Vec<u8>> =
            wide.chain(narrow.iter().map(|value| value.to_le_bytes().to_vec())).collect();
        let launch = Launch { grid: [grid, 1, 1], block: [block, 1, 1], dynamic_shared_bytes: 0, parameters };
        self.driver.launch(function, launch)?;
        self.driver.finish()
    }
}
