//! How the software GPU calls a kernel: the one place with raw pointers.
//!
//! A kernel `name` is two exported symbols: a function `name(launch, args)`, where `args[i]`
//! points at the i-th parameter's value, and a table `name_params` with the parameters' sizes.
//! [`kernels!`] makes both from one declaration, and hands the body slices in place of pointers.

use std::ffi::c_void;

/// The launch geometry. These kernels do a whole launch in one call and ignore it.
#[repr(C)]
pub struct Launch {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

/// The parameters of a kernel: how many, and the size of each in bytes.
#[repr(C)]
pub struct Params<const COUNT: usize> {
    /// Number of parameters.
    pub count: u32,
    /// Size of each in bytes.
    pub sizes: [u32; COUNT],
}

impl<const COUNT: usize> Params<COUNT> {
    /// The table for parameters of these sizes.
    pub const fn new(sizes: &[usize]) -> Self {
        assert!(sizes.len() == COUNT);
        let mut table = Params { count: COUNT as u32, sizes: [0; COUNT] };
        let mut i = 0;
        while i < COUNT {
            table.sizes[i] = sizes[i] as u32;
            i += 1;
        }
        table
    }
}

/// Walks over the arguments of one launch.
pub struct Arguments(*const *const c_void);

impl Arguments {
    /// # Safety
    /// 1. `args` points at as many pointers as `next` is called afterwards.
    /// 2. Each of these points at a readable value of the type asked for, aligned or not.
    pub unsafe fn new(args: *const *const c_void) -> Self {
        Arguments(args)
    }

    /// The next argument's value.
    ///
    /// # Safety
    /// The promises of [`Arguments::new`] hold for this call with this `T`.
    pub unsafe fn next<T: Copy>(&mut self) -> T {
        // SAFETY: promise 1 of `new`: the walk has not passed the last pointer.
        let value = unsafe { *self.0 };
        // SAFETY: promise 1 again: one past the pointer just read is at most the array's end.
        self.0 = unsafe { self.0.add(1) };
        // SAFETY: promise 2 of `new`.
        unsafe { value.cast::<T>().read_unaligned() }
    }
}

/// Declares kernels. Their parameters are, in this order: the buffers they `read`, the buffers
/// they `write` (or update), `sizes` (`unsigned` in CUDA, `usize` in the body), `reals` (`float`).
/// A buffer's length is given in terms of the sizes.
macro_rules! kernels {
    ($(
        $(#[$doc:meta])*
        fn $name:ident(
            read { $($input:ident[$input_len:expr]),* },
            write { $($output:ident[$output_len:expr]),* },
            sizes { $($size:ident),* },
            reals { $($real:ident),* }
        ) $body:block
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// 1. `args` points at one pointer for each parameter, each pointing at its value.
        /// 2. Each buffer is device memory of at least the declared length, mapped and used by
        ///    nobody else until the call returns; buffers written overlap no other.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            _launch: *const abi::Launch,
            args: *const *const ::std::ffi::c_void,
        ) {
            // SAFETY: promise 1 covers the reads below, one for each declared parameter.
            let mut args = unsafe { abi::Arguments::new(args) };
            // SAFETY: promise 1.
            $(let $input: *const f32 = unsafe { args.next() };)*
            // SAFETY: promise 1.
            $(let $output: *mut f32 = unsafe { args.next() };)*
            // SAFETY: promise 1.
            $(let $size = unsafe { args.next::<u32>() } as usize;)*
            // SAFETY: promise 1.
            $(let $real: f32 = unsafe { args.next() };)*
            // SAFETY: promise 2; floats have no invalid bits.
            $(let $input = unsafe { ::std::slice::from_raw_parts($input, $input_len) };)*
            // SAFETY: promise 2, so that no other reference to these floats exists.
            $(let $output = unsafe { ::std::slice::from_raw_parts_mut($output, $output_len) };)*
            $body
        }

        const _: () = {
            const SIZES: &[usize] = &[
                $(parameter_size!(read $input),)*
                $(parameter_size!(write $output),)*
                $(parameter_size!(size $size),)*
                $(parameter_size!(real $real),)*
            ];
            #[unsafe(export_name = concat!(stringify!($name), "_params"))]
            static PARAMS: abi::Params<{ SIZES.len() }> = abi::Params::new(SIZES);
        };
    )*

        /// Every kernel, for tests.
        #[cfg(test)]
        pub const TABLE: &[abi::Entry] = &[$(abi::Entry {
            name: stringify!($name),
            function: $name,
            params: &[
                $((concat!("const float *", stringify!($input)), parameter_size!(read $input)),)*
                $((concat!("float *", stringify!($output)), parameter_size!(write $output)),)*
                $((concat!("unsigned ", stringify!($size)), parameter_size!(size $size)),)*
                $((concat!("float ", stringify!($real)), parameter_size!(real $real)),)*
            ],
        }),*];
    };
}

/// The size in bytes of one parameter of a kind.
macro_rules! parameter_size {
    (read $name:ident) => {
        size_of::<*const f32>()
    };
    (write $name:ident) => {
        size_of::<*mut f32>()
    };
    (size $name:ident) => {
        size_of::<u32>()
    };
    (real $name:ident) => {
        size_of::<f32>()
    };
}

pub(crate) use {kernels, parameter_size};

/// A kernel as it is declared.
#[cfg(test)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// What a launch calls.
    pub function: unsafe extern "C" fn(*const Launch, *const *const c_void),
    /// Each parameter as CUDA declares it, and its size in bytes.
    pub params: &'static [(&'static str, usize)],
}
