//! How a host function is a kernel of the software GPU, and reaches device memory.

use std::ffi::c_void;
use std::marker::PhantomData;

/// What a kernel is told of its launch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Launch {
    /// Blocks, x y z.
    pub grid: [u32; 3],
    _block: [u32; 3],
    _shared_bytes: u32,
}

/// The sizes of a kernel's parameters, as the software driver reads them.
#[repr(C)]
pub struct Params<const N: usize> {
    /// How many there are.
    pub count: u32,
    /// Bytes of each.
    pub sizes: [u32; N],
}

/// An array in device memory.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Device<T> {
    address: u64,
    of: PhantomData<*const T>,
}

impl<T: Copy> Device<T> {
    /// # Safety
    /// A launch named the address, of as many elements as are used. Device memory is the process's while
    /// the kernel runs; where nothing is mapped, its context ends in a fault, as on hardware.
    pub unsafe fn at(address: u64) -> Self {
        Self { address, of: PhantomData }
    }

    /// Nowhere.
    pub fn null() -> Self {
        Self { address: 0, of: PhantomData }
    }

    /// The same place, with other elements.
    pub fn cast<U>(self) -> Device<U> {
        Device { address: self.address, of: PhantomData }
    }

    pub fn is_null(self) -> bool {
        self.address == 0
    }

    /// So many bytes further on.
    pub fn offset(self, bytes: u64) -> Self {
        Self { address: self.address + bytes, ..self }
    }

    fn element(self, index: i64) -> *mut T {
        (self.address as usize as *mut T).wrapping_offset(index as isize)
    }

    pub fn get(self, index: i64) -> T {
        // SAFETY: as `at` demands.
        unsafe { self.element(index).read_unaligned() }
    }

    pub fn set(self, index: i64, value: T) {
        // SAFETY: as `at` demands.
        unsafe { self.element(index).write_unaligned(value) }
    }
}

/// The parameter of a launch at `index`.
///
/// # Safety
/// `arguments` are a launch's, whose parameter there is a `T`.
pub unsafe fn parameter<T: Copy>(arguments: *const *const c_void, index: usize) -> T {
    // SAFETY: as said above.
    let place = unsafe { *arguments.wrapping_add(index) };
    // SAFETY: as said above.
    unsafe { place.cast::<T>().read_unaligned() }
}

/// Kernels: each with the name of its table of parameters, which the driver wants beside it. Parameters are
/// what the launch passes, in order; [`Device`] is an address. A first word names the [`Launch`], for who
/// wants it.
macro_rules! kernels {
    ($(
        $(#[$meta:meta])*
        fn $name:ident, $params:ident $(of $launch:ident)? ($($argument:ident: $type:ty),* $(,)?) $body:block
    )*) => { $(
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals, reason = "the software driver looks for this name")]
        static $params: $crate::kernel::Params<{ [$(stringify!($argument)),*].len() }> =
            $crate::kernel::Params {
                count: [$(stringify!($argument)),*].len() as u32,
                sizes: [$(size_of::<$type>() as u32),*],
            };

        $(#[$meta])*
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            _launch: *const $crate::kernel::Launch,
            arguments: *const *const std::ffi::c_void,
        ) {
            $(
                // SAFETY: the driver tells of the launch.
                let $launch = unsafe { *_launch };
            )?
            let mut next = 0..;
            $(
                let index = next.next().unwrap_or_default();
                // SAFETY: the driver calls it with the parameters of a launch, as the table has them.
                let $argument = unsafe { $crate::kernel::parameter::<$type>(arguments, index) };
            )*
            $body
        }
    )* };
}
pub(crate) use kernels;
