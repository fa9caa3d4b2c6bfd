//! Attributes as C passes them: numbers, of which a driver or a program may know more than the header
//! that we were built with. As values of the header's enums, unknown ones would be undefined behaviour.

use cudarc::driver::sys::{CUdevice_attribute, CUpointer_attribute};

macro_rules! numbers {
    ($( $(#[$doc:meta])* $name:ident = $known:ty; )*) => { $(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub u32);

        impl From<$known> for $name {
            fn from(known: $known) -> Self {
                Self(known as u32)
            }
        }

        impl PartialEq<$known> for $name {
            fn eq(&self, known: &$known) -> bool {
                *self == Self::from(*known)
            }
        }
    )* };
}

numbers! {
    /// What is asked of a device.
    DeviceAttribute = CUdevice_attribute;
    /// What is asked of an address.
    PointerAttribute = CUpointer_attribute;
}
